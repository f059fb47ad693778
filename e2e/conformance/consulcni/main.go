// A CNI plugin with the name and the effect of Consul's consul-cni on a node of Nomad: it sends the traffic of a group's
// network through the group's proxy, with Consul's own library. The module of consul-cni itself cannot be required: the
// versions that know Nomad are not on the module proxy.
package main

import (
	"encoding/json"
	"fmt"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/hashicorp/consul/sdk/iptables"
)

// arguments are what Nomad passes for the plugin.
type arguments struct {
	types.CommonArgs

	// The rules, as JSON. The name of the field is the name of the argument.
	CONSUL_IPTABLES_CONFIG types.UnmarshallableString
}

func add(args *skel.CmdArgs) error {
	network := types.NetConf{}
	if err := json.Unmarshal(args.StdinData, &network); err != nil {
		return fmt.Errorf("the network's configuration: %w", err)
	}
	if err := version.ParsePrevResult(&network); err != nil {
		return fmt.Errorf("the result of the plugin before: %w", err)
	}
	passed := arguments{}
	if err := types.LoadArgs(args.Args, &passed); err != nil {
		return fmt.Errorf("CNI_ARGS: %w", err)
	}
	if passed.CONSUL_IPTABLES_CONFIG != "" {
		rules := iptables.Config{}
		if err := json.Unmarshal([]byte(passed.CONSUL_IPTABLES_CONFIG), &rules); err != nil {
			return fmt.Errorf("CONSUL_IPTABLES_CONFIG: %w", err)
		}
		rules.NetNS = args.Netns
		if err := iptables.Setup(rules, false); err != nil {
			return err
		}
	}
	return types.PrintResult(network.PrevResult, network.CNIVersion)
}

func nothing(*skel.CmdArgs) error { return nil }

func main() {
	calls := skel.CNIFuncs{Add: add, Check: nothing, Del: nothing}
	// Nomad wants at least version 1.4.2.
	skel.PluginMainFuncs(calls, version.All, "CNI plugin consul-cni v1.9.0")
}
