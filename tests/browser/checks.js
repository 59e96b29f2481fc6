// What a test asks of the page that a browser shows. Each function returns names of the elements that are wrong.
window.checks = (() => {
  const CLICKABLE = "a[href], button, input:not([type=hidden]), select, textarea, summary, audio[controls], " +
    "video[controls], [tabindex]:not([tabindex='-1'])";
  const all = (selector) => [...document.querySelectorAll(selector)];

  function name(element) {
    const id = element.id ? `#${element.id}` : "";
    const kind = typeof element.className === "string" && element.className ? `.${element.className.trim().split(/\s+/).join(".")}` : "";
    const text = (element.getAttribute("aria-label") || element.textContent || "").trim().replace(/\s+/g, " ");
    return `${element.localName}${id}${kind} "${text.slice(0, 40)}"`;
  }

  function shown(element) {
    const box = element.getBoundingClientRect();
    return element.checkVisibility({ visibilityProperty: true }) && box.width > 0 && box.height > 0;
  }

  function clipped(element) {
    for (let parent = element.parentElement; parent && parent !== document.body; parent = parent.parentElement) {
      if (getComputedStyle(parent).overflowX !== "visible") return true;
    }
    return false;
  }

  // The page is wider than the window, or an element leaves it that no box of its own scrolls.
  function overflowing() {
    const wide = document.documentElement.scrollWidth > innerWidth ? [`page of ${document.documentElement.scrollWidth} px`] : [];
    const out = all("body *").filter((element) => {
      const box = element.getBoundingClientRect();
      return (box.right > innerWidth + 1 || box.left < -1) && shown(element) && !clipped(element);
    });
    return [...wide, ...out.slice(0, 5).map(name)];
  }

  // Text of a picture that its edge cuts off, and text that a box hides the end of.
  function cut() {
    const drawn = all("svg text").filter((text) => {
      const [inner, outer] = [text.getBoundingClientRect(), text.closest("svg").getBoundingClientRect()];
      return inner.width > 0 && (inner.right > outer.right + 2 || inner.left < outer.left - 2 || inner.bottom > outer.bottom + 4 || inner.top < outer.top - 4);
    });
    const hidden = all("body *").filter((element) =>
      ["hidden", "clip"].includes(getComputedStyle(element).overflowX) && element.clientWidth > 1 &&
      element.scrollWidth > element.clientWidth + 1 && element.namespaceURI.endsWith("xhtml") && shown(element));
    return [...drawn, ...hidden].map(name);
  }

  const scrolls = (element) => {
    const style = getComputedStyle(element);
    return (/auto|scroll/.test(style.overflowX) && element.scrollWidth > element.clientWidth + 1) ||
      (/auto|scroll/.test(style.overflowY) && element.scrollHeight > element.clientHeight + 1);
  };

  function hasOutline(element) {
    const style = getComputedStyle(element);
    const line = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0 && !/, 0\)$|transparent/.test(style.outlineColor);
    return line || style.boxShadow !== "none";
  }

  const stops = new Map();
  let [idle, wanted, scrolling] = [0, [], []];

  // Notes where Tab has come to, and whether a person sees it, before the next Tab leaves it.
  function note() {
    const element = document.activeElement;
    idle += 1;
    if (element === document.body || stops.has(element)) return;
    idle = 0;
    const box = element.getBoundingClientRect();
    const inside = box.right > 0 && box.left < innerWidth && box.bottom > 0 && box.top < innerHeight;
    const seen = element.checkVisibility({ visibilityProperty: true, opacityProperty: true }) && box.width > 0 && inside;
    stops.set(element, !seen ? "is not seen" : hasOutline(element) ? "" : "has no outline");
  }

  addEventListener("keydown", (event) => event.key === "Tab" && note(), true);

  // Tab goes on behind what was clicked last, comes to the end of the page, and on from its top.
  async function start() {
    document.activeElement.blur();
    scrollTo(0, 0);
    // What a page shows or hides as it scrolls comes with the next frames.
    for (let i = 0; i < 3; i += 1) await new Promise(requestAnimationFrame);
    stops.clear();
    idle = 0;
    const labelled = all("label").filter((label) => shown(label) && label.control).map((label) => label.control);
    wanted = [...new Set([...all(CLICKABLE).filter((element) => shown(element) && !element.disabled), ...labelled])];
    scrolling = all("body *").filter((box) => scrolls(box) && shown(box));
  }

  // What a mouse can reach and Tab does not, and stops of Tab that nobody sees.
  function unreached() {
    const missed = wanted.filter((element) => !stops.has(element)).map((element) => `Tab misses ${name(element)}`);
    const boxes = scrolling.filter((box) => ![...stops.keys()].some((one) => box.contains(one)));
    const bad = [...stops].filter(([, fault]) => fault).map(([element, fault]) => `focused ${name(element)} ${fault}`);
    return [...missed, ...boxes.map((box) => `Tab misses scrolling ${name(box)}`), ...bad];
  }

  return { cut, overflowing, start, unreached, isRound: () => idle > 3, links: () => all("a[href]").map((a) => a.href) };
})();
