// Command kube is etcd, the Kubernetes control plane, kubelet and kubectl in one binary: the name that it is called by
// picks the program. Each case is the body of that program's own main function; nothing is patched. Two programs are of
// our own and serve up.sh: `key` prints a private key, `ports N` prints free ports.
package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	_ "time/tzdata" // time zones of CronJob

	"go.etcd.io/etcd/server/v3/etcdmain"
	_ "k8s.io/client-go/plugin/pkg/client/auth"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

var programs = map[string]func(){
	"etcd":                    func() { etcdmain.Main(os.Args) },
	"kube-apiserver":          func() { os.Exit(cli.Run(apiserver.NewAPIServerCommand())) },
	"kube-controller-manager": func() { os.Exit(cli.Run(controllers.NewControllerManagerCommand())) },
	"kube-scheduler":          func() { os.Exit(cli.Run(scheduler.NewSchedulerCommand())) },
	"kubelet":                 func() { os.Exit(cli.Run(kubelet.NewKubeletCommand(context.Background()))) },
	"kubectl": func() {
		logs.GlogSetter(kubectl.GetLogVerbosity(os.Args))
		if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
			kubectlutil.CheckErr(err)
		}
	},
	"key":   key,
	"ports": ports,
}

// key prints a fresh private key, for signing service account tokens.
func key() {
	pem, err := keyutil.MakeEllipticPrivateKeyPEM()
	check(err)
	os.Stdout.Write(pem)
}

// ports prints free loopback ports. All are held until the last is found, so they differ.
func ports() {
	wanted, err := strconv.Atoi(os.Args[len(os.Args)-1])
	check(err)
	for range wanted {
		held, err := net.Listen("tcp", "127.0.0.1:0")
		check(err)
		defer held.Close()
		fmt.Println(held.Addr().(*net.TCPAddr).Port)
	}
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "kube:", err)
		os.Exit(1)
	}
}

func main() {
	run, ok := programs[filepath.Base(os.Args[0])]
	if !ok && len(os.Args) > 1 {
		if run, ok = programs[os.Args[1]]; ok {
			os.Args = os.Args[1:]
		}
	}
	if !ok {
		fmt.Fprintln(os.Stderr, "kube: call it by the name of one of its programs, or name that first")
		os.Exit(2)
	}
	run()
}
