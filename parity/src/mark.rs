//! The end of a script's output.

/// The mark at the end of a script's output.
pub const END: &str = "@end";

/// Writes the mark and waits until Nomad's log has it. The docker driver reads the output through a process that it
/// starts after the task; it loses the output of a task that ends earlier.
pub const FINISH: &str =
    "log=$NOMAD_ALLOC_DIR/logs/$NOMAD_TASK_NAME.stdout.0; before=$(cat $log 2>/dev/null | grep -c @end); left=60
    finish() { echo @end; echo @end >&2; [ -r $log ] || sleep 1
    while [ -r $log ] && [ $left -gt 0 ] && [ $(grep -c @end $log) -le $before ]; do
        sleep 0.1; left=$((left - 1)); done; }
";
