//! Images: formats, layers, pulls.

use crate::case::Case;

/// The cases of this area.
pub const CASES: &[Case] = &[
    Case::script(
        "layers_and_whiteouts",
        "cd /opt; ls -lnR | grep -v total | awk '{ print $1, $2, $3, $4, $NF }'; cat b hard lower/c; echo; cat soft",
    )
    .on("layers"),
    Case::script(
        "root_of_the_image",
        "ls -ldn / /bin /tmp /root /home/app /data | awk '{ print $1, $3, $4, $NF }'; ls -A / | grep -v dockerenv | \
            sort",
    ),
    Case::script("mark_of_docker_in_the_root", "[ -e /.dockerenv ]; echo code $?"),
    Case::image("docker_manifest", "docker-format"),
    Case::image("index_of_platforms", "index"),
    Case::image("image_of_another_platform", "other-platform"),
    Case::image("image_without_a_shell", "no-shell").unmarked(),
    Case::image("zstd_layers", "zstd"),
    Case::image("shell_of_the_image_is_ignored", "cmd-string"),
    Case::quick_image("image_that_does_not_exist", "no-such-image"),
    Case::image("tag_that_does_not_exist", "plain").config("image = \"@REGISTRY@/test/plain:none\""),
    Case::image("registry_that_does_not_answer", "plain").config("image = \"127.0.0.1:1/test/plain:1.0\""),
    Case::image("image_with_a_bad_name", "plain").config("image = \"UPPER/Case:1\""),
    Case::image("image_with_a_scheme", "plain").config("image = \"https://@REGISTRY@/test/plain:1.0\""),
    Case::image("image_without_a_name", "plain").config("image = \"\""),
    Case::image("force_pull", "plain").config("force_pull = true"),
    Case::image("image_pull_timeout", "plain").config("image_pull_timeout = \"1m\""),
    Case::image("bad_image_pull_timeout", "plain").config("image_pull_timeout = \"soon\""),
    Case::image("credentials_that_are_not_needed", "plain").config("auth {\nusername = \"u\"\npassword = \"p\"\n}"),
    Case::image("image_ports_and_labels", "ports"),
    Case::image("labels_of_the_task", "plain").config("labels = {\n\"a.example/b\" = \"c\"\n}"),
    Case::image("restart_of_a_missing_image", "no-such-image")
        .group("restart {\nattempts = 1\ninterval = \"1m\"\ndelay = \"0s\"\nmode = \"fail\"\n}"),
];
