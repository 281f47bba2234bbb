#!/usr/bin/env bash
# All that has to be run on a GPU, in stages of at most 9 minutes.
#
#   profiles/gpu.sh OUT tests [PYTEST ARGUMENTS]   every test marked gpu
#   profiles/gpu.sh OUT bench                      rltrain bench, all five
#   profiles/gpu.sh OUT profile                    rltrain profile; the backtest kernel
#   profiles/gpu.sh OUT learning                   PPO: 5 seeds x 2 s, and bf16, tf32, float32 and the tensor-core rollout on equal steps
#   profiles/gpu.sh OUT dqn                        DQN: every variant and replay mode, 3 seeds x 10 s
#   profiles/gpu.sh OUT sanitizer                  compute-sanitizer, memcheck and racecheck
#   profiles/gpu.sh OUT startup                    seconds to the first epoch, cold and warm
#   profiles/gpu.sh OUT soak                       long trainings, watched
#   profiles/gpu.sh OUT shapes                     other shapes of the kernels
#
# Leaves OUT/STAGE.log (all output), OUT/STAGE.json (what each part did) and OUT/STAGE.tar.gz (the parts' own files). A part that fails or
# takes too long does not keep the next from running; the exit code is the number of parts that failed. With --dry before OUT everything runs
# small on the CPU path, to see that it runs. JOBS: processes of the tests (default 6).
# shellcheck disable=SC2329 # the stages are called by their names
set -uo pipefail

DRY=
if [ "${1:-}" = --dry ]; then
    DRY=1
    shift
fi
if [ $# -lt 2 ]; then
    sed -n '2,/^# shellcheck/{/^# shellcheck/d;s/^# \{0,1\}//;p}' "$0" >&2
    exit 2
fi
mkdir -p "$1" || exit 2
OUT=$(cd "$1" && pwd)
STAGE=$2
shift 2
cd "$(dirname "$0")/.." || exit 2
PYTHON=${PYTHON:-python3}
export PYTHONUNBUFFERED=1
DEADLINE=$((SECONDS + ${STAGE_SECONDS:-530}))
WORK=$(mktemp -d)
LOG=$OUT/$STAGE.log
: >"$LOG"
PARTS=()
FAILED=()

# Where the package is not installed, it is used from this tree; cli/ is the package rltrain.
if ! "$PYTHON" -c 'import numba_rl.bench, rltrain.bench' 2>/dev/null; then
    mkdir -p "$WORK.tree"
    ln -sfn "$PWD/cli" "$WORK.tree/rltrain"
    export PYTHONPATH="$PWD:$WORK.tree${PYTHONPATH:+:$PYTHONPATH}"
fi

finish() {
    tar -czf "$OUT/$STAGE.tar.gz" -C "$WORK" . 2>/dev/null
    local joined
    joined=$(IFS=,; printf '%s' "${PARTS[*]:-}")
    printf '{"stage": "%s", "dry": %s, "parts": [%s]}\n' "$STAGE" "$([ -n "$DRY" ] && echo true || echo false)" "$joined" >"$OUT/$STAGE.json"
    rm -rf "$WORK" "$WORK.tree"
}
trap finish EXIT

# part NAME SECONDS COMMAND...: run it, for SECONDS at most and not beyond the stage's end; keep its output and how it ended.
part() {
    local name=$1 limit=$2 begun=$SECONDS code
    shift 2
    if ((DEADLINE - SECONDS < limit)); then
        limit=$((DEADLINE - SECONDS))
    fi
    printf '\n===== %s: %s\n' "$name" "$*" >>"$LOG"
    if ((limit < 5)); then
        code=125
        echo "not run: no time is left in this stage" >>"$LOG"
    else
        timeout --signal=INT --kill-after=10 "$limit" "$@" >>"$LOG" 2>&1 # an interrupted pytest still says what failed
        code=$?
    fi
    PARTS+=("{\"name\": \"$name\", \"code\": $code, \"seconds\": $((SECONDS - begun))}")
    case $code in
    0) echo "ok      $name ($((SECONDS - begun)) s)" ;;
    124 | 137) echo "LATE    $name (over $limit s)" ;;
    125) echo "NOT RUN $name" ;;
    *) echo "FAILED  $name (code $code)" ;;
    esac
    if ((code != 0)); then
        FAILED+=("$name")
        tail -n 4 "$LOG" | cut -c 1-300 | sed 's/^/        /'
    fi
}

DEVICE=cuda
[ -n "$DRY" ] && DEVICE=cpu

stage_tests() {
    local marked=(-m gpu) jobs=()
    if "$PYTHON" -c 'import xdist' 2>/dev/null; then
        jobs=(-n "${JOBS:-6}" --dist loadfile)
    fi
    if [ -n "$DRY" ]; then # they are all skipped without a GPU; that they are found and imported is what can be seen
        marked=(-m gpu --collect-only -q)
        jobs=()
    fi
    local options=(-v -p no:cacheprovider --durations=25)
    if (($#)); then
        part tests 525 "$PYTHON" -m pytest "${marked[@]}" "${jobs[@]}" "${options[@]}" --junitxml="$WORK/tests.xml" "$@"
        return
    fi
    part tests 525 "$PYTHON" -m pytest "${marked[@]}" "${jobs[@]}" "${options[@]}" --junitxml="$WORK/tests.xml" --ignore=tests/test_failures.py tests
    part failures 200 "$PYTHON" -m pytest "${marked[@]}" "${options[@]}" --junitxml="$WORK/failures.xml" tests/test_failures.py # they fill the card
}

stage_bench() {
    local name seconds=15 sizes
    for name in rollout ppo gae replay dqn; do
        sizes=()
        if [ -n "$DRY" ]; then
            seconds=0.1
            case $name in
            replay) sizes=(--sizes 5000x64) ;;
            dqn) sizes=(--sizes "32,8x16") ;;
            *) sizes=(--sizes 8x16) ;;
            esac
        fi
        part "bench-$name" 180 "$PYTHON" -m rltrain.main bench "$name" --device "$DEVICE" --seconds "$seconds" "${sizes[@]}" --json "$WORK/$name.json"
    done
}

stage_profile() {
    local small=() algorithm
    [ -n "$DRY" ] && small=(--epochs 1 --set episodes.count=8 --set episodes.launch=16)
    for algorithm in ppo dqn; do
        part "profile-$algorithm" 180 "$PYTHON" -m rltrain.main profile "$algorithm" --device "$DEVICE" "${small[@]}" --out "$WORK/$algorithm"
    done
    if [ -z "$DRY" ]; then
        part profile-batched 180 "$PYTHON" -m rltrain.main profile ppo --collector batched --device "$DEVICE" --out "$WORK/batched"
        part backtest 180 "$PYTHON" profiles/bench/backtest.py --json "$WORK/backtest.json"
    else
        part backtest 300 "$PYTHON" profiles/bench/backtest.py --dry --json "$WORK/backtest.json"
    fi
}

learn() { # learn NAME ARGUMENTS...
    local name=$1
    shift
    part "learning-$name" 260 "$PYTHON" profiles/learning.py --device "$DEVICE" "$@" --out "$WORK/$name"
}

stage_learning() {
    if [ -n "$DRY" ]; then
        learn ppo --seeds 1 --bars 3000 --steps 2048 --markets mean_reverting --set episodes.count=8
        return
    fi
    learn ppo --seeds 5 --seconds 2 --markets mean_reverting,random_walk
    local equal=(--seeds 5 --steps 2000000 --markets mean_reverting) precision
    for precision in bf16 tf32 float32; do
        learn "$precision" "${equal[@]}" --set "train.precision=$precision"
    done
    learn tensor-cores "${equal[@]}" --set episodes.count=1024 --set episodes.launch=64
}

stage_dqn() {
    local variant mode
    local given=(--algorithm dqn --seeds 3 --seconds 10 --markets mean_reverting)
    if [ -n "$DRY" ]; then
        given=(--algorithm dqn --seeds 1 --bars 3000 --steps 1024 --markets mean_reverting --set episodes.count=8 --set dqn.batch=32)
    fi
    for variant in dueling iqn noisy branching exposure; do
        learn "$variant" "${given[@]}" --variants "$variant"
    done
    for mode in rank uniform; do
        learn "$mode" "${given[@]}" --set "replay.mode=$mode"
    done
}

stage_sanitizer() {
    if [ -n "$DRY" ]; then
        part sanitize 300 "$PYTHON" profiles/sanitize.py --device cpu kernels graphs
        return
    fi
    local tool checker
    checker=${COMPUTE_SANITIZER:-$(command -v compute-sanitizer || compgen -G "/usr/local/cuda*/bin/compute-sanitizer" | head -n 1)}
    if [ -z "$checker" ]; then
        part "no-compute-sanitizer" 5 sh -c 'echo "compute-sanitizer is not on the PATH; name it: COMPUTE_SANITIZER=/path/to/it"; exit 127'
    fi
    part without-it 120 "$PYTHON" profiles/sanitize.py kernels graphs # compiles, and shows that the script itself is right
    [ -z "$checker" ] && return
    for tool in memcheck racecheck; do
        if [ "$tool" = racecheck ]; then # it misreads named barriers: profiles/racecheck.py
            export RLTRAIN_WHOLE_BARRIERS=1
        fi
        part "$tool-kernels" 260 env PYTORCH_NO_CUDA_MEMORY_CACHING=1 "$checker" --tool "$tool" --report-api-errors no --error-exitcode 9 --print-limit 20 \
            "$PYTHON" profiles/sanitize.py kernels
        part "$tool-graphs" 200 "$checker" --tool "$tool" --report-api-errors no --error-exitcode 9 --print-limit 20 "$PYTHON" profiles/sanitize.py graphs
    done
    unset RLTRAIN_WHOLE_BARRIERS
    for kernel in whole bystander race; do
        part "misread-$kernel" 40 "$checker" --tool racecheck --print-limit 4 "$PYTHON" profiles/racecheck.py "$kernel"
    done
}

stage_startup() {
    local algorithm
    for algorithm in ppo dqn; do
        part "startup-$algorithm" 260 "$PYTHON" profiles/startup.py --algorithm "$algorithm" --device "$DEVICE" --json "$WORK/startup-$algorithm.json"
    done
}

stage_soak() { # both side by side, each in two halves
    local algorithm minutes=7.5 commands=()
    [ -n "$DRY" ] && minutes=0.4
    for algorithm in ppo dqn; do
        commands+=("$PYTHON profiles/soak.py --algorithm $algorithm --minutes $minutes --device $DEVICE --out $WORK/soak-$algorithm")
    done
    part soak 525 bash -c "${commands[0]} & ${commands[1]} --set replay.capacity=1000000; second=\$?; wait %1 && exit \$second"
}

stage_shapes() {
    if [ -n "$DRY" ]; then
        part rollout 60 "$PYTHON" profiles/bench/rollout.py --help
        part replay 60 "$PYTHON" profiles/bench/replay.py --help
        return
    fi
    part rollout 300 "$PYTHON" profiles/bench/rollout.py --beside --json "$WORK/rollout.json"
    part replay 260 "$PYTHON" profiles/bench/replay.py --slots 1000000 --json "$WORK/replay.json"
}

if [ "$(type -t "stage_$STAGE")" != function ]; then
    echo "there is no stage $STAGE: tests, bench, profile, learning, dqn, sanitizer, startup, soak or shapes" >&2
    trap - EXIT
    rm -rf "$WORK" "$WORK.tree" "$LOG"
    exit 2
fi
[ -z "$DRY" ] && nvidia-smi --query-gpu=name,driver_version,memory.used --format=csv,noheader >>"$LOG" 2>&1
"stage_$STAGE" "$@"
if ((${#FAILED[@]})); then
    echo "$STAGE: ${#FAILED[@]} of ${#PARTS[@]} parts failed: ${FAILED[*]}; see $LOG"
else
    echo "$STAGE: all ${#PARTS[@]} parts are well"
fi
exit ${#FAILED[@]}
