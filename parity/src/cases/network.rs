//! Networks, addresses and ports.

use std::{net::UdpSocket, thread, time::Duration};

use e2e::Outcome;

use crate::{case::Case, observed::Observed, seen::Seen};

const LINKS: &str = "ip -o link | awk '{ print $2, $3, $5 }' | sed 's/@if[0-9]*//'; ip -o -4 address | awk '{ print \
    $2, $4 }' | sed 's#/[0-9]*##'; \
    ip route | sed 's#/[0-9]*##' | sed 's/ *src.*//; s/ via .* dev/ via gateway dev/'";
const SERVE: &str = "mkdir /www; echo served by $NOMAD_TASK_NAME >/www/index.html; httpd -p 8080 -h /www; \
    trap 'exit 0' TERM; sleep 1000 & wait";
const SERVE_ENV: &str = "mkdir /www; echo served >/www/index.html; httpd -p $NOMAD_PORT_http -h /www; \
    env | grep -E 'NOMAD_(PORT|HOST_PORT|ADDR|IP|ALLOC_PORT)' | sort; trap 'exit 0' TERM; sleep 1000 & wait";
/// No image has a server for datagrams. The kernel counts those that no program receives.
const COUNT: &str = "n=0; while [ $n -lt 100 ]; do [ $(awk '/^Udp: [0-9]/ { print $3 }' /proc/net/snmp) -gt 0 ] && \
    echo arrived && break; sleep 0.1; n=$((n + 1)); done; trap 'exit 0' TERM; sleep 1000 & wait";
const PORT: &str = "network {\nport \"http\" {\nto = 8080\n}\n}";
const BRIDGE: &str = "network {\nmode = \"bridge\"\nport \"http\" {\nto = 8080\n}\n}";

/// The cases of this area.
pub const CASES: &[Case] = &[
    Case::script("interfaces_by_default", LINKS),
    Case::script("interfaces_without_a_network", LINKS).config("network_mode = \"none\""),
    Case::script(
        "interfaces_of_the_host",
        "ip -o link | grep -q ' node0'; echo node0 $?; hostname -i >/dev/null; echo code $?",
    )
    .config("network_mode = \"host\""),
    Case::quick_script("interfaces_of_a_group", LINKS).group("network {\nmode = \"bridge\"\n}"),
    Case::script("interfaces_of_a_group_without_a_network", LINKS).group("network {\nmode = \"none\"\n}"),
    Case::script("interfaces_of_a_group_on_the_host", "ip -o link | grep -q ' node0'; echo node0 $?").group(
        "network {\nmode \
        = \"host\"\n}",
    ),
    Case::script("network_mode_bridge", LINKS).config("network_mode = \"bridge\""),
    Case::script("network_mode_default", LINKS).config("network_mode = \"default\""),
    Case::script("network_mode_unknown", "true").config("network_mode = \"no-such-network\""),
    Case::script("network_of_a_group_and_of_the_task", "ip -o link | grep -q ' node0'; echo node0 $?")
        .group("network {\nmode = \"bridge\"\n}")
        .config("network_mode = \"host\""),
    Case::script(
        "loopback",
        "ping -c 1 -W 2 127.0.0.1 >/dev/null; echo code $?; (echo x | nc -l -p 99 &) ; sleep \
        0.2; nc 127.0.0.1 99 </dev/null",
    ),
    Case::script("the_node_is_reached", "ping -c 1 -W 3 198.51.100.2 >/dev/null; echo code $?").config("cap_add = []"),
    Case::script("the_outside_is_reached", "echo | nc -w 3 198.51.100.1 9; echo code $?"),
    Case::script(
        "low_port_of_a_user",
        "(sleep 1 | nc -l -p 80 &) ; sleep 0.3; netstat -ltn | grep -c ':80 \
        '",
    )
    .task("user = \"app\""),
    Case::script(
        "low_port_of_a_user_in_a_group",
        "(sleep 1 | nc -l -p 80 &) ; sleep 0.3; netstat -ltn | grep -c \
        ':80 '",
    )
    .task("user = \"app\"")
    .group("network {\nmode = \"bridge\"\n}"),
    Case::script(
        "ping_of_a_user_in_a_group",
        "ping -c 1 -W 2 127.0.0.1 >/dev/null; echo code $?; cat \
        /proc/sys/net/ipv4/ping_group_range",
    )
    .task("user = \"app\"")
    .group("network {\nmode = \"bridge\"\n}"),
    Case::script(
        "sysctls_of_a_group",
        "for k in ip_unprivileged_port_start ping_group_range ip_forward; do echo \"$k = $(cat \
            /proc/sys/net/ipv4/$k)\"; done",
    )
    .group("network {\nmode = \"bridge\"\n}"),
    Case::script("sysctl_of_the_task_in_a_group", "cat /proc/sys/net/core/somaxconn")
        .group("network {\nmode = \"bridge\"\n}")
        .config("sysctl = {\n\"net.core.somaxconn\" = \"1234\"\n}"),
    Case::quick_script("a_port_from_outside", SERVE).group(PORT).config("ports = [\"http\"]").look(fetch),
    Case::script("a_port_for_datagrams_from_outside", COUNT).group(PORT).config("ports = [\"http\"]").look(send),
    Case::script("a_port_of_a_group_for_datagrams", COUNT).group(BRIDGE).look(send),
    Case::script("a_port_of_a_group_from_outside", SERVE).group(BRIDGE).look(fetch),
    Case::script("a_port_of_a_group_and_of_the_task", SERVE).group(BRIDGE).config("ports = [\"http\"]").look(fetch),
    Case::script("a_port_on_the_network_of_the_host", SERVE_ENV)
        .group("network {\nport \"http\" {}\n}")
        .config("network_mode = \"host\"\nports = [\"http\"]")
        .look(fetch),
    Case::script("a_port_without_to", SERVE_ENV)
        .group("network {\nport \"http\" {}\n}")
        .config(
            "ports = \
        [\"http\"]",
        )
        .look(fetch),
    Case::script("a_port_of_a_group_without_to", SERVE_ENV)
        .group("network {\nmode = \"bridge\"\nport \"http\" {}\n}")
        .look(fetch),
    Case::script(
        "variables_of_a_port",
        "env | grep -E \
        'NOMAD_(PORT|HOST_PORT|ADDR|HOST_ADDR|IP|HOST_IP|ALLOC_PORT|ALLOC_IP)' | sort",
    )
    .group(PORT)
    .config("ports = [\"http\"]"),
    Case::script(
        "variables_of_a_port_of_a_group",
        "env | grep -E \
        'NOMAD_(PORT|HOST_PORT|ADDR|IP|ALLOC_PORT|ALLOC_IP)' | sort",
    )
    .group(BRIDGE),
    Case::script("a_port_that_is_not_in_the_group", "true").config("ports = [\"none\"]").group(PORT),
    Case::script("two_ports", SERVE)
        .group("network {\nport \"http\" {\nto = 8080\n}\nport \"other\" {\nto = 9090\n}\n}")
        .config("ports = [\"http\", \"other\"]")
        .look(fetch),
    Case::script("a_port_that_is_not_published", SERVE).group(PORT).look(not_published),
    Case::script("port_map_with_a_port_of_the_task", "env | grep -E 'NOMAD_(PORT|ADDR)' | sort")
        .task("resources {\ncpu = 50\nmemory = 32\nnetwork {\nport \"http\" {}\n}\n}")
        .config("port_map {\nhttp = 8080\n}"),
    Case::script("port_map_with_an_unknown_label", "env | grep -E 'NOMAD_(PORT|ADDR)' | sort")
        .task("resources {\ncpu = 50\nmemory = 32\nnetwork {\nport \"http\" {}\n}\n}")
        .config("port_map {\nhttp = 8080\nother = 99\n}"),
    Case::script("port_map_with_a_port_of_the_group", "true").group(PORT).config("port_map {\nhttp = 8080\n}"),
    Case::script("port_map_without_a_port", "true").config("port_map {\nhttp = 8080\n}"),
    Case::script("mac_address_of_the_task", "cat /sys/class/net/eth0/address | tr : -").config(
        "mac_address \
        = \"02:42:ac:11:99:42\"",
    ),
    Case::script("a_bad_mac_address", "true").config("mac_address = \"no address\""),
    Case::script("network_aliases", "true").config("network_aliases = [\"alias\"]"),
    Case::script("ipv4_address_on_the_default_network", "true").config("ipv4_address = \"172.17.0.200\""),
    Case::script(
        "host_name_of_a_group",
        "hostname; cat /etc/hostname; grep -w box /etc/hosts | awk '{ print $2, $3 }'",
    )
    .group("network {\nmode = \"bridge\"\nhostname = \"box\"\n}"),
    Case::script(
        "two_tasks_share_a_network",
        "for n in 1 2 3 4 5 6 7 8 9 10; do wget -q -O - http://127.0.0.1:8080/ \
        && break; sleep 0.5; done; \
         echo code $?",
    )
    .group(
        "network {\nmode = \"bridge\"\n}\ntask \"web\" {\ndriver = \"@DRIVER@\"\nlifecycle {\nhook \
            = \"prestart\"\nsidecar = true\n}\n\
                config {\nimage = \"@IMAGE:plain@\"\ncommand = \"/bin/sh\"\nargs = [\"-c\", \"mkdir /www; echo web \
            >/www/index.html; exec httpd -f -p 8080 -h /www\"]\n}\n\
                kill_timeout = \"1s\"\nresources {\ncpu = 50\nmemory = 32\n}\n}",
    ),
];

fn fetch(seen: &Seen, observed: &mut Observed) -> Outcome {
    match seen.fetch("http") {
        Ok(page) => observed.add_lines("page", &page),
        Err(_) => observed.add("page", "none"),
    }
    Ok(())
}

/// Sends datagrams to the port for a while: the kernel of the task counts them.
fn send(seen: &Seen, _: &mut Observed) -> Outcome {
    let address = seen.task.address("http")?;
    seen.node.outside.run(|| {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        for _ in 0..30 {
            // A refusal of the datagram before is no failure.
            drop(socket.send_to(b"question", &address));
            thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    })
}

fn not_published(seen: &Seen, observed: &mut Observed) -> Outcome {
    let address = seen.task.address("http")?;
    observed.add("published", seen.node.outside.run(|| Ok(e2e::api::fetch(&format!("http://{address}/")).is_ok()))?);
    Ok(())
}
