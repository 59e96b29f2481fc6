"""Texts of compiled programs are read right: kernels, loops, bytes, products, collectives, graphs."""

import jax
import jax.numpy as jnp
import pytest

from jaxrl_dist.training import hlo

SPEEDS = hlo.Speeds(kernel_s=1.0, bytes_per_second=100.0, flops_per_second=50.0)
PROGRAM = """HloModule jit_train, is_scheduled=true

%fused_sum (param_0: f32[8,4], param_1: s32[]) -> f32[4] {
  %param_0 = f32[8,4]{1,0} parameter(0)
  %param_1 = s32[] parameter(1)
  %zero = s32[] constant(0)
  %row = f32[1,4]{1,0} dynamic-slice(%param_0, %param_1, %zero), dynamic_slice_sizes={1,4}
  ROOT %flat = f32[4]{0} bitcast(%row)
}

%fused_write (param_0.1: f32[8,4], param_1.1: f32[4], param_2: s32[]) -> f32[8,4] {
  %param_1.1 = f32[4]{0} parameter(1)
  %param_0.1 = f32[8,4]{1,0} parameter(0)
  %param_2 = s32[] parameter(2)
  %zero.1 = s32[] constant(0)
  %one = f32[1,4]{1,0} bitcast(%param_1.1)
  ROOT %written = f32[8,4]{1,0} dynamic-update-slice(%param_0.1, %one, %param_2, %zero.1)
}

%body (state: (s32[], f32[8,4], f32[4,3])) -> (s32[], f32[8,4], f32[4,3]) {
  %state = (s32[], f32[8,4]{1,0}, f32[4,3]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %rows = f32[8,4]{1,0} get-tuple-element(%state), index=1
  %weights = f32[4,3]{1,0} get-tuple-element(%state), index=2
  %row.1 = f32[4]{0} fusion(%rows, %i), kind=kLoop, calls=%fused_sum
  %product = f32[8,3]{1,0} dot(%rows, %weights), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %new = f32[8,4]{1,0} fusion(%rows, %row.1, %i), kind=kLoop, calls=%fused_write
  %reduced = f32[4]{0} all-reduce(%row.1), replica_groups={{0,1}}, to_apply=%add
  ROOT %after = (s32[], f32[8,4]{1,0}, f32[4,3]{1,0}) tuple(%i, %new, %weights)
}

%condition (state.1: (s32[], f32[8,4], f32[4,3])) -> pred[] {
  %state.1 = (s32[], f32[8,4]{1,0}, f32[4,3]{1,0}) parameter(0)
  %limit = s32[] constant(7)
  %i.1 = s32[] get-tuple-element(%state.1), index=0
  ROOT %goes_on = pred[] compare(%i.1, %limit), direction=LT
}

%rare (x: f32[4]) -> f32[4] {
  %x = f32[4]{0} parameter(0)
  %copied = f32[4]{0} copy(%x)
  ROOT %twice = f32[4]{0} copy(%copied)
}

%usual (y: f32[4]) -> f32[4] {
  ROOT %y = f32[4]{0} parameter(0)
}

ENTRY %main (a: f32[8,4], b: f32[4,3], c: f32[4], d: pred[]) -> f32[4] {
  %a = f32[8,4]{1,0} parameter(0)
  %b = f32[4,3]{1,0} parameter(1)
  %c = f32[4]{0} parameter(2)
  %d = pred[] parameter(3)
  %start = s32[] constant(0)
  %begun = (s32[], f32[8,4]{1,0}, f32[4,3]{1,0}) tuple(%start, %a, %b)
  %told = STATE while(%begun), condition=%condition, body=%body, OF_STEP, backend_config={"known_trip_count":{"n":"5"}}
  %compared = STATE while(%told), condition=%condition, body=%body, metadata={op_name="jit(f)/step/while/body/b/while"}
  ROOT %chosen = f32[4]{0} conditional(%d, %c, %c), true_computation=%usual, false_computation=%rare
}
"""
PROGRAM = PROGRAM.replace("STATE", "(s32[], f32[8,4]{1,0}, f32[4,3]{1,0})")
PROGRAM = PROGRAM.replace("OF_STEP", 'metadata={op_name="jit(train)/vmap(step)/while" id=1}')


def test_a_program_is_read_by_loops() -> None:
    program = hlo.read(PROGRAM, SPEEDS, ("step",))
    told, compared = program.loops
    assert (told.scope, told.passes, compared.scope, compared.passes) == ("step", 5, "step", 7)
    assert program.kernels == 2, "the longer branch"
    assert told.kernels == 4 and program.total("kernels") == 2 + 12 * 4
    # A slice of 16 bytes and its index; rows, weights and result; the row written in place; the row reduced.
    moved = [16 + 16 + 4, 4 * (32 + 12 + 24), 16 + 16 + 4, 16 + 16]
    assert told.bytes == sum(moved) and told.flops == 2 * 8 * 3 * 4
    assert told.seconds == pytest.approx(sum(max(1.0, x / 100) for x in [moved[0], 192 * 2, *moved[2:]]))
    assert told.collectives == [("all-reduce", 16)] and program.collectives == []
    assert [(depth, loop.scope) for depth, loop in program.walk()] == [(0, ""), (1, "step"), (1, "step")]


def test_passes_that_only_the_device_knows_are_none() -> None:
    text = PROGRAM.replace("direction=LT", "direction=NE")
    assert [loop.passes for loop in hlo.read(text, SPEEDS).loops] == [5, None]
    with pytest.raises(ValueError, match="ENTRY"):
        hlo.read("HloModule empty", SPEEDS)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ("f32[8,4]{1,0:T(8,128)}", 128),
        ("(s32[], pred[3], /*index=2*/bf16[2,2])", 4 + 3 + 8),
        ("u8[]", 1),
        ("token[]", 0),
    ],
)
def test_sizes(shape: str, expected: int) -> None:
    assert hlo.size(shape) == expected


def test_what_the_host_starts_is_outside_of_graphs() -> None:
    thunks = """000: kCommandBuffer [source | next=003 (1)]
    001: kCopy [source | sink] kCopy
    002: kWhile [source | sink]
      condition:
        003: kCustomKernel [source | sink] compare
004: kWhile [prev=000 (1) | sink]
condition:
    005: kCustomKernel [source | sink] compare
  body:
    000: kCommandBuffer [source | sink]
        006: kGemm [source | sink] gemm
    007: kCustomKernel [source | sink] add
"""
    assert hlo.launches(thunks) == hlo.Launches(graphs=2, kernels=2, loops=1)


def test_this_machine_s_own_program_is_read() -> None:
    @jax.jit
    def program(x: jax.Array, weights: jax.Array) -> jax.Array:
        def step(x: jax.Array, _: None) -> tuple[jax.Array, None]:
            return jnp.tanh(x @ weights), None

        with jax.named_scope("layer"):
            return jax.lax.scan(step, x, None, length=11)[0]

    compiled = program.lower(jnp.ones((16, 8)), jnp.ones((8, 8))).compile()
    (loop,) = hlo.read(compiled.as_text(), SPEEDS, ("layer",)).loops
    assert (loop.scope, loop.passes, loop.flops) == ("layer", 11, 2 * 16 * 8 * 8) and loop.kernels >= 2
    assert loop.operation == "while"


def test_a_loop_that_the_compiler_makes_of_a_scatter_says_so() -> None:
    @jax.jit
    def program(x: jax.Array, index: jax.Array, rows: jax.Array) -> jax.Array:
        return x.at[index].set(rows)

    compiled = program.lower(jnp.ones((16, 8)), jnp.arange(5), jnp.ones((5, 8))).compile()
    (loop,) = hlo.read(compiled.as_text(), SPEEDS).loops
    assert (loop.operation, loop.passes) == ("scatter", 5)


def test_a_loop_has_the_name_of_its_own_scope_alone() -> None:
    loop = 'while(%i), condition=%none, body=%leaf, metadata={op_name="jit(f)/step/while/body/while"}'
    inner = PROGRAM.replace("  %row.1 = f32[4]{0} fusion", f"  %deep = (s32[]) {loop}\n  %row.1 = f32[4]{{0}} fusion")
    inner = inner.replace("ENTRY", "%leaf (z: f32[4]) -> f32[4] {\n  %z = f32[4]{0} parameter(0)\n}\n\nENTRY")
    told = hlo.read(inner, SPEEDS, ("step",)).loops[0]
    assert (told.scope, told.loops[0].scope, told.loops[0].passes) == ("step", "", None)
    named = inner.replace("step/while/body/while", "step/while/body/core/while")
    assert hlo.read(named, SPEEDS, ("step", "core")).loops[0].loops[0].scope == "core"
