// A box that scrolls is reached by keyboard, in every browser; one in which all is seen is passed over.
addEventListener("DOMContentLoaded", () => {
  const watch = new ResizeObserver((changes) => {
    for (const { target } of changes) {
      if (target.scrollWidth > target.clientWidth) target.tabIndex = 0;
      else target.removeAttribute("tabindex");
    }
  });
  for (const box of document.querySelectorAll(".table-wrapper, .highlight pre, div.math")) watch.observe(box);
});
