//! The files that a driver generates: hosts, resolv.conf, hostname.

use crate::case::Case;

const HOSTS: &str = "sed \"s/\\b$(hostname)\\b/<host>/\" /etc/hosts | grep -v '^#' | grep -v '^$' | \
    awk '{ a = $1; $1 = \"\"; print \"hosts \" a \" =\" $0 }'; ls -ln /etc/hosts | awk '{ print \"owner = \" $1, $3, \
        $4 }'; \
    echo '192.0.2.9 mine' >>/etc/hosts; echo \"written = $?\"";
const RESOLV: &str = "grep -v '^#' /etc/resolv.conf | grep -v '^$' | awk '{ k = $1; $1 = \"\"; print k \" =\" $0 }'; \
    ls -ln /etc/resolv.conf | awk '{ print \"owner \
    = \" $1, $3, $4 }'; \
    (echo '#' >>/etc/resolv.conf) 2>/dev/null; echo \"written = $?\"";

/// The cases of this area.
pub const CASES: &[Case] = &[
    Case::quick_script("hosts", HOSTS),
    Case::script("hosts_of_the_image", HOSTS).on("own-files"),
    Case::script("hosts_of_the_task", HOSTS).config("extra_hosts = [\"db:192.0.2.7\", \"six:2001:db8::7\"]"),
    Case::script("hosts_with_the_gateway", "grep -w gw /etc/hosts | awk '{ print $2 }'").config(
        "extra_hosts = \
        [\"gw:host-gateway\"]",
    ),
    Case::script("hosts_with_a_bad_entry", "true").config("extra_hosts = [\"no-address\"]"),
    Case::script("hosts_on_the_network_of_the_host", HOSTS).config("network_mode = \"host\""),
    Case::script("hosts_without_a_network", HOSTS).config("network_mode = \"none\""),
    Case::script("hosts_of_a_group", HOSTS).group("network {\nmode = \"bridge\"\n}"),
    Case::script(
        "own_name_in_a_group",
        "own=$(awk -v name=$(hostname) '$2 == name { print $1 }' /etc/hosts); \
        ip -4 -o addr show dev eth0 | grep -qw \"$own\"; echo code $?",
    )
    .group("network {\nmode = \"bridge\"\n}"),
    Case::script("hosts_of_a_group_and_of_the_task", HOSTS)
        .group("network {\nmode = \"bridge\"\n}")
        .config("extra_hosts = [\"db:192.0.2.7\"]"),
    Case::script(
        "hostname_file_on_the_network_of_the_host",
        "hostname; cat /etc/hostname; ls -ln /etc/hostname | \
        awk '{ print $1, $3, $4 }'",
    )
    .config("network_mode = \"host\""),
    Case::script("hostname_file_of_the_image", "cat /etc/hostname | wc -c").on("own-files"),
    Case::quick_script("resolv_conf", RESOLV),
    Case::script("resolv_conf_of_the_image", RESOLV).on("own-files"),
    Case::script("resolv_conf_of_the_task", RESOLV).config(
        "dns_servers = [\"192.0.2.53\", \"192.0.2.54\"]\ndns_search_domains = [\"a.example\", \"b.example\"]\n\
                 dns_options = [\"ndots:3\", \"rotate\"]",
    ),
    Case::script("resolv_conf_with_a_bad_server", RESOLV).config("dns_servers = [\"not-an-address\"]"),
    Case::script("resolv_conf_on_the_network_of_the_host", RESOLV).config("network_mode = \"host\""),
    Case::script("resolv_conf_of_the_task_on_the_network_of_the_host", RESOLV)
        .config("network_mode = \"host\"\ndns_servers = [\"192.0.2.53\"]"),
    Case::script("resolv_conf_of_a_group", RESOLV).group(
        "network {\nmode = \"bridge\"\ndns {\nservers = [\"192.0.2.53\"]\nsearches = [\"a.example\"]\noptions \
            = [\"ndots:2\"]\n}\n}",
    ),
    Case::script("resolv_conf_of_a_group_without_dns", RESOLV).group("network {\nmode = \"bridge\"\n}"),
    Case::script("resolv_conf_without_a_network", RESOLV).config("network_mode = \"none\""),
    Case::script("mtab_and_localtime", "ls -ld /etc/mtab /etc/localtime 2>&1 | awk '{ print $1, $NF }'").on("links"),
];
