#!/bin/sh
# Makes the environments of the benchmark peers, one each: DIR/rejax (rejax 0.1.3, gymnax 0.0.9, JAX 0.10.2), DIR/brax
# (Brax 0.14.2, mujoco 3, JAX 0.9.2), DIR/sbx (SBX 0.28, Gymnasium's MuJoCo), DIR/skrl (skrl 2.1.1, the same MuJoCo),
# DIR/flashbax (flashbax 0.1.3, JAX 0.10.2) and DIR/purejaxrl (what a clone of PureJaxRL imports: gymnax 0.0.9, distrax,
# flashbax). The pins of the first three exclude each other, and ours.
#
#   benchmarks/setup_peers.sh [DIR=.venv-peers]
#
# A finished environment is left alone, so that a second call takes no time; one whose pins have changed, or whose
# installation was interrupted, is made anew. PYTHON names the interpreter (3.11 or newer; default python3).
# On a machine with a GPU, PEERS_JAX_EXTRA=cuda12 adds JAX's CUDA plugin of the pinned version.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
peers=${1:-.venv-peers}
python=${PYTHON:-python3}
extra=${PEERS_JAX_EXTRA:-}

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "setup_peers.sh: $python is older than 3.11; set PYTHON=python3.11" >&2
    exit 2
}

for peer in rejax brax sbx flashbax purejaxrl skrl; do
    venv=$peers/$peer
    pins=$here/requirements-$peer.txt
    stamp=$venv/installed.txt
    if [ -f "$stamp" ] && (cat "$pins"; echo "# $extra") | cmp -s - "$stamp"; then
        echo "$venv: already installed"
        continue
    fi
    echo "$venv: installing"
    "$python" -m venv --clear "$venv"
    "$venv/bin/python" -m pip install --quiet --no-deps -r "$pins"
    if [ -n "$extra" ]; then
        jax_version=$(sed -n 's/^jax==//p' "$pins")
        "$venv/bin/python" -m pip install --quiet "jax[$extra]==$jax_version"
    fi
    # PureJaxRL's clone is given to run.py; here is what it imports.
    modules=$peer
    [ "$peer" = purejaxrl ] && modules="distrax, flashbax, gymnax"
    JAX_PLATFORMS=cpu "$venv/bin/python" -W ignore -c "import $modules" > /dev/null
    (cat "$pins"; echo "# $extra") > "$stamp"
done
echo "peers are ready in $peers"
