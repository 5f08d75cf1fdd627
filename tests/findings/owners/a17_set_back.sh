# A node is set back to the build before (07a6322) while a commit is open, and forward again.
# cut_off's drain would finish the commit; step "open" therefore skips the drain (see SKIP).
run() { b=$1; shift; if [ $b = old ]; then P=/tmp/old/services:/tmp/old/shared:/tmp/old/tests; else P=./tests; fi; PYTHONPATH=$P nice ./.venv/bin/python tests/findings/owners/a17_step.py "$@"; }
echo "--- 1: back, a plain append of the same producer, forward"; D=$(mktemp -d /tmp/a17-XXXX)
run new $D open; run old $D repeat7; run old $D plain8; run new $D repeat7
echo "--- 2: back, all uploaded, drained"; D=$(mktemp -d /tmp/a17-XXXX)
run new $D open; run old $D list; run old $D leave
