//! Command, entrypoint, arguments and exit status.

use crate::case::Case;

/// The cases of this area.
pub const CASES: &[Case] = &[
    Case::quick_image("cmd_of_the_image", "plain"),
    Case::quick_image("entrypoint_and_cmd_of_the_image", "entry"),
    Case::image("entrypoint_without_cmd", "entry-only"),
    Case::image("cmd_in_shell_form", "shell-form"),
    Case::image("cmd_found_in_path", "relative"),
    Case::image("cmd_relative_to_the_working_directory", "relative-path"),
    Case::image("command_replaces_cmd", "entry").config(r#"command = "other""#),
    Case::image("command_with_args", "entry").config("command = \"other\"\nargs = [\"a\", \"b c\", \"\", \"$HOME\"]"),
    Case::image("args_without_command", "entry").config(r#"args = ["only", "args"]"#),
    Case::image("args_without_command_and_entrypoint", "plain").config(r#"args = ["/bin/show", "x"]"#),
    Case::image("entrypoint_of_the_task", "entry").config(r#"entrypoint = ["/bin/show", "task"]"#),
    Case::image("entrypoint_and_command_of_the_task", "entry")
        .config("entrypoint = [\"/bin/show\", \"task\"]\ncommand = \"c\"\nargs = [\"d\"]"),
    Case::image("empty_entrypoint_of_the_task", "entry").config("entrypoint = []\ncommand = \"x\""),
    Case::image("args_with_variables_of_nomad", "plain")
        .config("command = \"/bin/show\"\nargs = [\"${NOMAD_TASK_NAME}\", \"${NOMAD_META_key}\", \"${env.none}\"]")
        .task("meta {\nkey = \"value\"\n}"),
    Case::image("args_with_special_characters", "plain").config(
        r#"command = "/bin/show"
            args = ["quote \" and '", "back\\slash", "tab\there", "ünïcode", "*", "$(id)", "%s", "-n"]"#,
    ),
    Case::quick_image("command_is_missing", "plain").config(r#"command = "/no/such/program""#),
    Case::image("command_is_missing_in_path", "plain").config(r#"command = "no-such-program""#),
    Case::image("command_is_not_executable", "plain").config(r#"command = "/data/not-executable""#),
    Case::image("command_is_a_directory", "plain").config(r#"command = "/data""#),
    Case::image("image_without_a_command", "nothing"),
    Case::script("exit_code_zero", "exit 0"),
    Case::script("exit_code_one", "exit 1"),
    Case::quick_script("exit_code_three", "exit 3"),
    Case::script("exit_code_127", "exit 127"),
    Case::script("exit_code_255", "exit 255"),
    Case::image("a_child_dies_by_sigkill", "plain")
        .config("command = \"/bin/sh\"\nargs = [\"-c\", \"sh -c 'kill -9 $$'; echo code $?; sleep 2\"]")
        .unmarked(),
    Case::image("a_shell_dies_by_sigterm_of_a_child", "plain")
        .config("command = \"/bin/sh\"\nargs = [\"-c\", \"trap 'exit 9' TERM; (kill -TERM 1); sleep 1; exit 1\"]")
        .unmarked(),
    Case::image("no_signal_without_handler_ends_process_one", "plain")
        .config("command = \"/bin/sh\"\nargs = [\"-c\", \"kill -TERM 1; kill -SEGV 1; exit 4\"]")
        .unmarked(),
    Case::script("process_one_and_its_arguments", "tr '\\0' ' ' </proc/1/cmdline | head -1; cat /proc/1/comm"),
    Case::script("processes_of_the_container", "ps -o pid,comm | head -2"),
];
