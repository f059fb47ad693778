//! The output of tasks: complete, in order, on the right stream.

use crate::case::Case;

/// Lines of both streams, one without text, one that is no text, and one that is sent in two parts.
const TEXT: &str =
    "echo one; echo two >&2; echo; printf 'a\\001\\377<b>\\n'; head -c 20000 /dev/zero | tr '\\0' x; echo";

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
    Case::quick_script("log_driver_syslog", TEXT).config(
        "logging {\ntype = \"syslog\"\nconfig {\nsyslog-address = \"@LOG:syslog-udp@\"\n\
         tag = \"@JOB@/{{.Name}}/{{.FullID}}/{{.Command | len}}\"\n}\n}",
    ),
    Case::script("log_driver_syslog_rfc3164", TEXT).config(
        "logging {\ntype = \"syslog\"\nconfig {\nsyslog-address = \"@LOG:syslog-tcp@\"\nsyslog-format = \"rfc3164\"\n\
         syslog-facility = \"local3\"\ntag = \"@JOB@\"\n}\n}",
    ),
    Case::script("log_driver_syslog_rfc5424", TEXT).config(
        "logging {\ntype = \"syslog\"\nconfig {\nsyslog-address = \"@LOG:syslog-tcp@\"\n\
         syslog-format = \"rfc5424micro\"\ntag = \"@JOB@\"\nmode = \"non-blocking\"\nmax-buffer-size = \"4m\"\n}\n}",
    ),
    Case::script("log_driver_gelf_udp", "echo one; echo two >&2; echo; printf 'a\\001\\377<b>\\n'").config(
        "logging {\ntype = \"gelf\"\nconfig {\ngelf-address = \"@LOG:gelf-udp@\"\ngelf-compression-type = \"none\"\n\
         tag = \"@JOB@\"\nlabels = \"team,none\"\nenv-regex = \"^COL\"\n}\n}\nlabels {\nteam = \"blue\"\n}",
    )
    .task("env {\nCOLOR = \"red\"\n}"),
    Case::script("log_driver_gelf_tcp", TEXT)
        .config("logging {\ntype = \"gelf\"\nconfig {\ngelf-address = \"@LOG:gelf-tcp@\"\ntag = \"@JOB@\"\n}\n}"),
    Case::script("log_driver_fluentd", TEXT).config(
        "logging {\ntype = \"fluentd\"\nconfig {\nfluentd-address = \"@LOG:fluentd@\"\ntag = \"@JOB@\"\n\
         labels-regex = \"^te\"\nenv = \"COLOR\"\n}\n}\nlabels {\nteam = \"blue\"\n}",
    )
    .task("env {\nCOLOR = \"red\"\n}"),
    Case::script("log_driver_fluentd_async", TEXT).config(
        "logging {\ntype = \"fluentd\"\nconfig {\nfluentd-address = \"@LOG:fluentd@\"\ntag = \"@JOB@\"\n\
         fluentd-async = \"true\"\nfluentd-sub-second-precision = \"true\"\n}\n}",
    ),
    Case::script("log_driver_image_name", "echo one").config(
        "logging {\ntype = \"syslog\"\nconfig {\nsyslog-address = \"@LOG:syslog-udp@\"\n\
         tag = \"@JOB@/{{.ImageName}}\"\n}\n}",
    ),
    Case::script("log_driver_with_a_wrong_option", "echo lost")
        .config("logging {\ntype = \"syslog\"\nconfig {\nsyslog-facility = \"nope\"\n}\n}")
        .unmarked(),
    Case::script("log_driver_without_its_server", "echo lost")
        .config("logging {\ntype = \"syslog\"\nconfig {\nsyslog-address = \"tcp://127.0.0.1:1\"\n}\n}")
        .unmarked(),
    Case::script("logging_unknown", "echo sent").config("logging {\ntype = \"no-such\"\n}"),
    Case::script("logs_switched_off", "echo lost").task("logs {\ndisabled = true\n}").unmarked(),
    Case::script("logs_of_a_small_size", "seq 1 1000").task("logs {\nmax_files = 2\nmax_file_size = 1\n}"),
];
