//! Mounts, volumes, devices and the file systems of the kernel.

use crate::case::Case;

/// Mount point, kind of the file system and options, without the sizes that depend on the machine.
const MOUNTS: &str = "awk '{ k = \"\"; for (i = 7; i <= NF; i++) if ($i == \"-\") k = $(i + 1); \
    print $5 \" = \" k \" \" $6 }' /proc/self/mountinfo | sort";
const VOLUME: &str = "for d in /data /fresh /fresh/one; do ls -ldn $d 2>&1 | awk '{ print $1, $3, $4, $9 }'; done; \
    cat /data/from-image; touch /data/w; echo code $?; touch /fresh/one/w; echo code $?; \
    for d in /data /fresh/one; do stat -f -c '%T' $d; done";

/// The cases of this area.
pub const CASES: &[Case] = &[
    Case::quick_script("mounts_by_default", MOUNTS),
    Case::script("mounts_of_a_privileged_task", MOUNTS).config("privileged = true").all_capabilities(),
    Case::script("mounts_of_a_read_only_task", MOUNTS).config("readonly_rootfs = true"),
    Case::script(
        "read_only_root",
        "touch /x; echo code $?; touch /tmp/x; echo code $?; touch $NOMAD_TASK_DIR/x; \
        echo code $?",
    )
    .config("readonly_rootfs = true"),
    Case::script(
        "masked_and_read_only_paths",
        "for p in /proc/kcore /proc/keys /proc/timer_list /proc/sched_debug /proc/scsi /proc/acpi /sys/firmware \
         /proc/interrupts /sys/devices/virtual/powercap; do [ -e $p ] && echo \"$p = $(ls -ld $p | cut -c1) $(head \
            -c 1 $p 2>/dev/null | wc -c)\" \
         || echo \"$p = missing\"; done; for p in /proc/sys/vm/swappiness /proc/sysrq-trigger \
            /proc/irq/default_smp_affinity \
         /proc/bus /proc/fs /sys/kernel/profiling; do [ -e $p ] || continue; touch $p/x 2>/dev/null; (echo >>$p) \
            2>/dev/null \
         && echo \"$p = writable\" || echo \"$p = protected\"; done",
    ),
    Case::script(
        "devices_by_default",
        "ls -ln /dev | tail -n +2 | awk '{ print $NF, $1, $3, $4, $5, $6 }' | sed 's/ \
        [0-9]* [A-Z].*//'
        for d in null zero full random urandom tty; do head -c 1 /dev/$d 2>/dev/null | wc -c; done; ls -ld /dev | \
            cut -c1-10",
    ),
    Case::script(
        "devices_of_a_privileged_task",
        "[ $(ls /dev | wc -l) -gt 20 ]; echo many $?; [ -e /dev/kmsg ]; \
        echo kmsg $?; ls -ln /dev/null /dev/vda | awk '{ print $1, $3, $4, $5, $6, $NF }'",
    )
    .config("privileged = true")
    .all_capabilities(),
    Case::script(
        "a_device_of_the_host",
        "ls -ln /dev/kmsg | awk '{ print $1, $3, $4, $5, $6 }'; head -c 1 /dev/kmsg \
        | wc -c",
    )
    .config("devices = [{ host_path = \"/dev/kmsg\" }]"),
    Case::script(
        "a_device_at_another_path",
        "ls -ln /dev/other | awk '{ print $1, $3, $4, $5, $6 }'; dd \
        if=/dev/other bs=1 count=1 2>/dev/null | wc -c",
    )
    .config(
        "devices = [{ host_path = \"/dev/full\"\ncontainer_path = \"/dev/other\"\ncgroup_permissions = \"r\" \
            }]",
    ),
    Case::script("a_device_that_is_missing", "true").config("devices = [{ host_path = \"/dev/no-such\" }]"),
    Case::script("bad_device_permissions", "true")
        .config("devices = [{ host_path = \"/dev/full\"\ncgroup_permissions = \"rwx\" }]"),
    Case::quick_script(
        "volume_of_the_task_directory",
        "cat /mnt/file; echo new >/mnt/new; ls -ln /mnt | awk '{ \
        print $1, $3, $4, $NF }'",
    )
    .config("volumes = [\"local/sub:/mnt\"]")
    .task("template {\ndata = \"text\\n\"\ndestination = \"local/sub/file\"\n}"),
    Case::script("volume_that_is_missing", "ls -ldn /mnt | awk '{ print $1, $3, $4 }'; touch /mnt/x; echo code $?")
        .config("volumes = [\"local/made:/mnt\"]"),
    Case::script("volume_of_the_host", "cat /mnt/file; touch /mnt/by-task; echo code $?")
        .config("volumes = [\"@SCRATCH@/shared:/mnt\"]"),
    Case::script("read_only_volume_of_the_host", "cat /mnt/file; touch /mnt/by-task; echo code $?")
        .config("volumes = [\"@SCRATCH@/readable:/mnt:ro\"]"),
    Case::script("volume_with_a_label_for_selinux", "cat /mnt/file; touch /mnt/by-task; echo code $?")
        .config("volumes = [\"@SCRATCH@/readable:/mnt:ro,z\"]"),
    Case::script("volume_of_another_owner", "cat /mnt/file; ls -ldn /mnt | awk '{ print $1, $3, $4 }'")
        .config("volumes = [\"@SCRATCH@/of-app:/mnt\"]")
        .task("user = \"app\""),
    Case::script("volume_of_a_file", "cat /etc/one-file; ls -ln /etc/one-file | awk '{ print $1, $3, $4 }'")
        .config("volumes = [\"@SCRATCH@/readable/file:/etc/one-file:ro\"]"),
    Case::script("volume_of_the_alloc_directory", "ls /mnt").config("volumes = [\"../alloc/data:/mnt\"]"),
    Case::script("two_volumes_inside_each_other", "[ -d /mnt/inner ]; echo code $?; cat /mnt/inner/file")
        .config("volumes = [\"@SCRATCH@/shared:/mnt/inner\", \"local/outer:/mnt\"]"),
    Case::script("volume_over_files_of_the_image", "cat /data/file; ls /data/from-image 2>&1 | wc -c")
        .config("volumes = [\"@SCRATCH@/shared:/data\"]"),
    Case::script(
        "volume_with_a_name",
        "ls -ldn /mnt | awk '{ print $1, $3, $4 }'; echo kept >/mnt/x; cat /mnt/x; \
        stat -f -c %T /mnt",
    )
    .config("volume_driver = \"local\"\nvolumes = [\"parity-@DRIVER@-a:/mnt\"]"),
    Case::script("volume_with_a_bad_form", "true").config("volumes = [\"a:b:c:d:e\"]"),
    Case::script("volume_with_a_relative_target", "true").config("volumes = [\"local:relative\"]"),
    Case::script("mount_of_the_host", "cat /mnt/file; touch /mnt/x; echo code $?")
        .config("mount {\ntype = \"bind\"\nsource = \"@SCRATCH@/shared\"\ntarget = \"/mnt\"\n}"),
    Case::script(
        "read_only_mount_of_the_host",
        "touch /mnt/x; echo code $?; grep ' /mnt ' /proc/self/mountinfo | \
        cut -d' ' -f6",
    )
    .config("mount {\ntype = \"bind\"\nsource = \"@SCRATCH@/shared\"\ntarget = \"/mnt\"\nreadonly = true\n}"),
    Case::script("mount_of_the_task_directory", "ls -ldn /mnt | awk '{ print $1, $3, $4 }'")
        .config("mount {\ntype = \"bind\"\nsource = \"local\"\ntarget = \"/mnt\"\n}"),
    Case::script("mount_of_a_missing_directory", "ls -ldn /mnt")
        .config("mount {\ntype = \"bind\"\nsource = \"@SCRATCH@/none\"\ntarget = \"/mnt\"\n}"),
    Case::script(
        "mount_with_propagation",
        "grep ' /mnt ' /proc/self/mountinfo | grep -o 'master\\|shared' | sort \
        -u; echo end",
    )
    .config(
        "mount {\ntype = \"bind\"\nsource = \"@SCRATCH@/shared\"\ntarget = \"/mnt\"\n\
                 bind_options {\npropagation = \"rslave\"\n}\n}",
    ),
    Case::script("mounts_as_a_list", "cat /mnt/file")
        .config("mounts = [{\ntype = \"bind\"\nsource = \"@SCRATCH@/shared\"\ntarget = \"/mnt\"\n}]"),
    Case::script(
        "tmpfs_by_default",
        "df -k /mnt | tail -1 | awk '{ print $1 }'; ls -ldn /mnt | awk '{ print $1, $3, \
        $4 }'; \
         grep ' /mnt ' /proc/self/mountinfo | cut -d' ' -f6",
    )
    .config("mount {\ntype = \"tmpfs\"\ntarget = \"/mnt\"\n}"),
    Case::script(
        "tmpfs_with_size_and_mode",
        "df -k /mnt | tail -1 | awk '{ print $2 }'; ls -ldn /mnt | awk '{ print \
        $1, $3, $4 }'",
    )
    .config("mount {\ntype = \"tmpfs\"\ntarget = \"/mnt\"\ntmpfs_options {\nsize = 1048576\nmode = 448\n}\n}"),
    Case::script("read_only_tmpfs", "touch /mnt/x; echo code $?")
        .config("mount {\ntype = \"tmpfs\"\ntarget = \"/mnt\"\nreadonly = true\n}"),
    Case::script("mount_of_a_volume", "ls -ldn /mnt | awk '{ print $1, $3, $4 }'; touch /mnt/x; echo code $?")
        .config("mount {\ntype = \"volume\"\nsource = \"parity-@DRIVER@-b\"\ntarget = \"/mnt\"\n}"),
    Case::script("mount_of_a_volume_over_files", "ls -ldn /data | awk '{ print $1, $3, $4 }'; cat /data/from-image")
        .config("mount {\ntype = \"volume\"\nsource = \"parity-@DRIVER@-c\"\ntarget = \"/data\"\n}"),
    Case::script("mount_of_a_volume_without_a_copy", "ls -ldn /data | awk '{ print $1, $3, $4 }'; ls /data | wc -l")
        .config(
            "mount {\ntype = \"volume\"\nsource = \"parity-@DRIVER@-d\"\ntarget = \"/data\"\n\
                 volume_options {\nno_copy = true\n}\n}",
        ),
    Case::script(
        "mount_of_a_volume_without_a_name",
        "ls -ldn /data | awk '{ print $1, $3, $4 }'; cat /data/from-image",
    )
    .config("mount {\ntarget = \"/data\"\n}"),
    Case::script(
        "mount_of_a_volume_without_a_name_and_a_copy",
        "ls -ldn /data | awk '{ print $1, $3, $4 }'; ls /data | wc -l; touch /data/x; echo code $?",
    )
    .config("mount {\ntarget = \"/data\"\nvolume_options {\nno_copy = true\n}\n}"),
    Case::script("read_only_mount_of_a_volume_without_a_name", "true")
        .config("mount {\ntarget = \"/data\"\nreadonly = true\n}"),
    Case::quick_script(
        "volume_that_is_a_tmpfs",
        "ls -ldn /mnt | awk '{ print $1, $3, $4 }'; df -k /mnt | tail -1 | awk '{ print $2 }'; touch /mnt/x; echo \
        code $?; grep ' /mnt ' /proc/self/mountinfo | sed 's/.* - //' | cut -d' ' -f1",
    )
    .config(
        "mount {\nsource = \"parity-@DRIVER@-tmpfs1\"\ntarget = \"/mnt\"\nvolume_options {\n\
         driver_config {\nname = \"local\"\noptions {\n\
         type = \"tmpfs\"\ndevice = \"tmpfs\"\no = \"size=1m,uid=1000,mode=750\"\n}\n}\n}\n}",
    ),
    Case::script("volume_that_is_a_tmpfs_over_files", "ls /data | wc -l; ls -ldn /data | awk '{ print $1, $3, $4 }'")
        .config(
            "mount {\nsource = \"parity-@DRIVER@-tmpfs2\"\ntarget = \"/data\"\nvolume_options {\n\
         driver_config {\nname = \"local\"\noptions {\ntype = \"tmpfs\"\ndevice = \"tmpfs\"\n}\n}\n}\n}",
        ),
    Case::script(
        "volume_without_a_name_that_is_a_tmpfs",
        "touch /mnt/x; echo code $?; ls -ldn /mnt | awk '{ print $1, $3, $4 }'",
    )
    .config(
        "mount {\ntarget = \"/mnt\"\nvolume_options {\n\
         driver_config {\nname = \"local\"\noptions {\n\
         type = \"tmpfs\"\ndevice = \"tmpfs\"\no = \"mode=700\"\n}\n}\n}\n}",
    ),
    Case::quick_script("volume_that_is_a_directory", "cat /mnt/file; touch /mnt/x; echo code $?; rm /mnt/x").config(
        "mount {\nsource = \"parity-@DRIVER@-bind1\"\ntarget = \"/mnt\"\nvolume_options {\n\
         driver_config {\nname = \"local\"\noptions {\n\
         type = \"none\"\ndevice = \"@SCRATCH@/shared\"\no = \"bind\"\n}\n}\n}\n}",
    ),
    Case::script(
        "volume_that_is_a_read_only_directory",
        "cat /mnt/file; touch /mnt/x; echo code $?; grep ' /mnt ' /proc/self/mountinfo | \
        cut -d' ' -f6 | cut -d, -f1",
    )
    .config(
        "mount {\nsource = \"parity-@DRIVER@-bind2\"\ntarget = \"/mnt\"\nvolume_options {\n\
         driver_config {\nname = \"local\"\noptions {\n\
         type = \"none\"\ndevice = \"@SCRATCH@/readable\"\no = \"ro,bind\"\n}\n}\n}\n}",
    ),
    Case::script(
        "volume_that_is_an_empty_directory_over_files",
        "ls -ldn /data | awk '{ print $1, $3, $4 }'; cat /data/from-image; rm -r /data/*",
    )
    .config(
        "mount {\nsource = \"parity-@DRIVER@-bind3\"\ntarget = \"/data\"\nvolume_options {\n\
         driver_config {\nname = \"local\"\noptions {\n\
         type = \"none\"\ndevice = \"@SCRATCH@/empty\"\no = \"bind\"\n}\n}\n}\n}",
    ),
    Case::script(
        "volume_that_is_a_directory_with_files_over_files",
        "ls -ldn /data | awk '{ print $1, $3, $4 }'; ls /data",
    )
    .config(
        "mount {\nsource = \"parity-@DRIVER@-bind4\"\ntarget = \"/data\"\nvolume_options {\n\
         driver_config {\nname = \"local\"\noptions {\n\
         type = \"none\"\ndevice = \"@SCRATCH@/readable\"\no = \"bind\"\n}\n}\n}\n}",
    ),
    Case::script(
        "volume_that_is_an_empty_directory_without_a_copy",
        "ls -ldn /data | awk '{ print $1, $3, $4 }'; ls /data | wc -l",
    )
    .config(
        "mount {\nsource = \"parity-@DRIVER@-bind5\"\ntarget = \"/data\"\nvolume_options {\nno_copy = true\n\
         driver_config {\nname = \"local\"\noptions {\n\
         type = \"none\"\ndevice = \"@SCRATCH@/bare\"\no = \"bind\"\n}\n}\n}\n}",
    ),
    Case::script("volume_at_two_places", "echo one >/a/x; cat /b/x").config(
        "mount {\nsource = \"parity-@DRIVER@-twice\"\ntarget = \"/a\"\nvolume_options {\n\
         driver_config {\nname = \"local\"\noptions {\ntype = \"tmpfs\"\ndevice = \"tmpfs\"\n}\n}\n}\n}\n\
         mount {\nsource = \"parity-@DRIVER@-twice\"\ntarget = \"/b\"\nvolume_options {\n\
         driver_config {\nname = \"local\"\noptions {\ntype = \"tmpfs\"\ndevice = \"tmpfs\"\n}\n}\n}\n}",
    ),
    Case::script("volume_with_other_options", "df -k /a | tail -1 | awk '{ print $2 }'").config(
        "mount {\nsource = \"parity-@DRIVER@-other\"\ntarget = \"/a\"\nvolume_options {\n\
         driver_config {\nname = \"local\"\noptions {\n\
         type = \"tmpfs\"\ndevice = \"tmpfs\"\no = \"size=1m\"\n}\n}\n}\n}\n\
         mount {\nsource = \"parity-@DRIVER@-other\"\ntarget = \"/b\"\nvolume_options {\n\
         driver_config {\nname = \"local\"\noptions {\n\
         type = \"tmpfs\"\ndevice = \"tmpfs\"\no = \"size=2m\"\n}\n}\n}\n}",
    ),
    Case::script("mount_of_an_unknown_type", "true").config("mount {\ntype = \"nfs\"\ntarget = \"/mnt\"\n}"),
    Case::script("mount_with_a_relative_target", "true").config("mount {\ntype = \"tmpfs\"\ntarget = \"mnt\"\n}"),
    Case::script("tmpfs_with_a_source", "true").config(
        "mount {\ntype = \"tmpfs\"\nsource = \"x\"\ntarget \
        = \"/mnt\"\n}",
    ),
    Case::quick_script("volumes_of_the_image", VOLUME).on("volumes"),
    Case::script("volumes_of_the_image_and_a_user", VOLUME).on("volumes-user"),
    Case::script("volumes_of_the_image_in_a_read_only_task", VOLUME).on("volumes").config("readonly_rootfs = true"),
    Case::script("volumes_of_the_image_under_a_bind", "cat /data/file; ls /data/from-image 2>&1 | wc -c")
        .on("volumes")
        .config(
            "volumes = \
        [\"@SCRATCH@/shared:/data\"]",
        ),
    Case::script(
        "volumes_of_the_image_behind_a_link",
        "ls -ld /link | cut -c1; touch /real/inside/x; echo code \
        $?",
    )
    .on("links"),
    Case::script(
        "volume_of_nomad",
        "cat /vol/file; touch /vol/of-nomad; echo code $?; grep ' /vol ' \
        /proc/self/mountinfo | cut -d' ' -f6",
    )
    .group("volume \"v\" {\ntype = \"host\"\nsource = \"shared\"\n}")
    .task("volume_mount {\nvolume = \"v\"\ndestination = \"/vol\"\n}"),
    Case::script(
        "read_only_volume_of_nomad",
        "touch /vol/of-nomad; echo code $?; grep ' /vol ' /proc/self/mountinfo \
        | cut -d' ' -f6",
    )
    .group("volume \"v\" {\ntype = \"host\"\nsource = \"shared\"\nread_only = true\n}")
    .task("volume_mount {\nvolume = \"v\"\ndestination = \"/vol\"\nread_only = true\n}"),
    Case::script(
        "secrets_directory",
        "ls -ldn $NOMAD_SECRETS_DIR | awk '{ print $1, $3, $4 }'; stat -f -c %T \
        $NOMAD_SECRETS_DIR; touch /secrets/x; echo code $?",
    ),
    Case::quick_script(
        "logs_directory",
        "cd $NOMAD_ALLOC_DIR/logs; echo line >app.log; echo code $?; cat app.log; mkdir sub; mv app.log sub; ls sub; \
        rm -r sub; echo code $?; stat -c '%u %g %a' .; ls",
    ),
    Case::script(
        "file_systems",
        "for p in / /tmp /dev /dev/shm /proc /sys $NOMAD_TASK_DIR; do echo \"$p = $(stat -f \
        -c %T $p)\"; done",
    ),
    Case::script(
        "file_operations",
        "cd /tmp; echo a >a; ln a b; ln -s a c; mkfifo f; mkdir -p d/e; mv a d/; cp -p d/a d/e/x; chmod 4755 d/e/x; \
         ls -lnR | awk '{ print $1, $2, $3, $4, $NF }'; rm -r /data /etc/group; ls /data; mv /home /away; ls /away; \
            rmdir /place; \
         mkdir /place; ls -A /place | wc -l",
    ),
];
