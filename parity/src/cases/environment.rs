//! Environment variables, working directory, host name and labels.

use e2e::Outcome;

use crate::{case::Case, observed::Observed, seen::Seen};

/// The cases of this area.
pub const CASES: &[Case] = &[
    Case::quick_script("environment_of_a_task", "env | sort | sed 's/=/ = /'"),
    Case::script("environment_of_the_task_wins", "env | sort | grep -E '^(GREETING|PATH|OWN|HOME)='")
        .task("env {\nGREETING = \"of the task\"\nOWN = \"${NOMAD_TASK_NAME} x\"\n}"),
    Case::script("path_of_the_task", "echo $PATH").task("env {\nPATH = \"/bin\"\n}"),
    Case::script("special_values_of_the_image", "env | sort | grep -vE '^(NOMAD|HOSTNAME)'").on("environment"),
    Case::script("environment_without_one_in_the_image", "env | sort | grep -vE '^(NOMAD|HOSTNAME)'")
        .on("no-environment"),
    Case::script("home_of_a_named_user", "env | grep HOME; echo ~").task("user = \"app\""),
    Case::script("home_of_a_number", "env | grep HOME; echo ~").task("user = \"1000\""),
    Case::script("home_of_an_unknown_number", "env | grep HOME; echo ~").task("user = \"4711\""),
    Case::script("home_of_the_image_user", "env | grep HOME").on("user"),
    Case::script("home_of_the_task", "env | grep HOME").task("env {\nHOME = \"/place\"\n}"),
    Case::script("term_with_tty", "echo term $TERM").config("tty = true"),
    Case::script(
        "directories_of_nomad",
        "env | sort | grep _DIR; ls -ld $NOMAD_TASK_DIR $NOMAD_ALLOC_DIR | cut -c1-10",
    ),
    Case::script("meta_of_the_task", "env | sort | grep META").task("meta {\na = \"1\"\nb_c = \"2\"\n}"),
    Case::script("working_directory_of_the_image", "pwd; ls -ldn . | awk '{ print $1, $3, $4 }'").on("directory"),
    Case::script("working_directory_is_made", "pwd; ls -ldn . /made /made/by | awk '{ print $1, $3, $4, $NF }'")
        .on("directory-missing"),
    Case::script(
        "working_directory_is_made_for_a_user",
        "pwd; ls -ldn . /made /made/by | awk '{ print $1, $3, $4, $NF }'",
    )
    .on("directory-user"),
    Case::script("work_dir_of_the_task", "pwd").config("work_dir = \"/data\"").on("directory"),
    Case::script("work_dir_is_made", "pwd; ls -ldn . | awk '{ print $1, $3, $4 }'").config("work_dir = \"/new/one\""),
    Case::script("work_dir_is_made_for_a_user", "pwd; ls -ldn . | awk '{ print $1, $3, $4 }'")
        .config("work_dir = \"/new/one\"")
        .task("user = \"app\""),
    Case::script("work_dir_is_a_file", "pwd").config("work_dir = \"/data/from-image\""),
    Case::script("hostname_of_the_task", "hostname; cat /etc/hostname; grep -w box /etc/hosts | cut -f2-")
        .config("hostname = \"box\""),
    Case::script("hostname_with_a_domain", "hostname; cat /etc/hostname; grep -w foo /etc/hosts | cut -f2-")
        .config("hostname = \"foo.bar.example\""),
    Case::script("hostname_by_default", "hostname | wc -c; cat /proc/sys/kernel/domainname"),
    Case::script("environment_of_process_one", "trap 'exit 0' TERM; sleep 1000 & wait")
        .look(environment_of_process_one),
    Case::script("variables_of_a_template", "env | sort | grep FROM")
        .task("template {\ndata = \"FROM_A=1\\nFROM_B=two words\\n\"\ndestination = \"local/env\"\nenv = true\n}"),
    Case::script("identity_of_the_workload", "env | grep -c NOMAD_TOKEN; ls -ln $NOMAD_SECRETS_DIR | cut -c1-10,15-35")
        .task("identity {\nenv = true\nfile = true\n}"),
    Case::script("dispatch_payload_without_one", "ls local | sort"),
];

fn environment_of_process_one(seen: &Seen, observed: &mut Observed) -> Outcome {
    let text = seen.proc("environ")?.replace('\0', "\n");
    let hidden = |line: &&str| line.starts_with("NOMAD") || line.starts_with("HOSTNAME");
    let mut lines: Vec<&str> = text.lines().filter(|line| !hidden(line)).collect();
    lines.sort_unstable();
    observed.add_lines("variable", &lines.join("\n"));
    Ok(())
}
