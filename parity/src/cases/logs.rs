//! The output of tasks: complete, in order, on the right stream.

use crate::case::Case;

/// The cases of this area.
pub const CASES: &[Case] = &[
    Case::quick_script("both_streams", "echo out; echo err >&2; echo out again"),
    Case::script("many_lines", "seq 1 5000 | md5sum; seq 1 5000"),
    Case::script("long_line", "head -c 300000 /dev/zero | tr '\\0' x; echo; echo after"),
    Case::script("bytes_that_are_no_text", "printf 'a\\001\\377\\200b\\n'; printf 'nul\\000nul\\n'"),
    Case::script("output_of_children_after_the_end", "(echo child) ; (sleep 0.2; echo late) & wait"),
    Case::script("interleaved_streams", "for n in 1 2 3 4 5; do echo o$n; echo e$n >&2; done"),
    Case::script("output_of_a_terminal", "echo out; echo err >&2; printf 'a\\nb\\n'").config("tty = true"),
    Case::script("logging_json_file", "echo kept")
        .config("logging {\ntype = \"json-file\"\nconfig {\nmax-size = \"1m\"\n}\n}"),
    Case::script("logging_local", "echo kept").config("logging {\ndriver = \"local\"\n}"),
    Case::script("logging_none", "echo lost").config("logging {\ntype = \"none\"\n}").unmarked(),
    Case::script("logging_syslog", "echo sent").config("logging {\ntype = \"syslog\"\n}").unmarked(),
    Case::script("logging_unknown", "echo sent").config("logging {\ntype = \"no-such\"\n}"),
    Case::script("logs_switched_off", "echo lost").task("logs {\ndisabled = true\n}").unmarked(),
    Case::script("logs_of_a_small_size", "seq 1 1000").task("logs {\nmax_files = 2\nmax_file_size = 1\n}"),
];
