// Command check tests the dashboards, PodMonitors and alert rules with a real Prometheus. Its input is what operators and runners
// serve, as other tests have recorded it.
//
//	check DEPLOY PROMETHEUS SCRAPES RULES
//
// DEPLOY is deploy/monitoring/base, PROMETHEUS the program, SCRAPES the directory with operator.prom and runner.prom, and RULES the
// alert rules as Prometheus reads them.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// target is the VM of the recorded operator, and the labels that Kubernetes gives to the recorded pods.
type target struct {
	namespace string
	vm        string
	node      string
}

func main() {
	if len(os.Args) != 5 {
		fmt.Fprintln(os.Stderr, "usage: check DEPLOY PROMETHEUS SCRAPES RULES")
		os.Exit(2)
	}
	failures, err := check(os.Args[1], os.Args[2], os.Args[3], os.Args[4])
	if err != nil {
		failures = append(failures, err.Error())
	}
	for _, failure := range failures {
		fmt.Println("FAILED:", failure)
	}
	if len(failures) > 0 {
		os.Exit(1)
	}
}

func check(deploy, program, scrapes, rules string) ([]string, error) {
	queries, err := dashboardQueries(deploy)
	if err != nil {
		return nil, err
	}
	monitors, err := readMonitors(filepath.Join(deploy, "pod-monitor.yaml"))
	if err != nil {
		return nil, err
	}
	recorded, err := os.ReadFile(filepath.Join(scrapes, "operator.prom"))
	if err != nil {
		return nil, err
	}
	vm, err := recordedVM(string(recorded))
	if err != nil {
		return nil, err
	}
	server, err := startPrometheus(program, scrapes, rules, monitors, vm)
	if err != nil {
		return nil, err
	}
	defer server.stop()
	if err := server.waitForSamples(); err != nil {
		return nil, err
	}
	if len(server.checkQueries([]query{{place: "a mistake", expr: "no_such_metric"}}, vm)) != 1 {
		return nil, fmt.Errorf("a query without a series is not found")
	}
	failures := server.checkQueries(queries, vm)
	fmt.Printf("%d queries of dashboards\n", len(queries))
	failures = append(failures, server.checkLabels(vm)...)
	return append(failures, server.checkAlerts(vm)...), nil
}

// recordedVM finds the namespace and the name of the VM in a scrape of an operator.
func recordedVM(text string) (target, error) {
	for _, line := range strings.Split(text, "\n") {
		labels, found := strings.CutPrefix(line, "vm_operator_vm_info{")
		if !found {
			continue
		}
		value := func(name string) string {
			_, rest, _ := strings.Cut(","+labels, ","+name+`="`)
			value, _, _ := strings.Cut(rest, `"`)
			return value
		}
		return target{namespace: value("namespace"), vm: value("name"), node: "node-of-the-pod"}, nil
	}
	return target{}, fmt.Errorf("the scrape of the operator has no VM")
}

// eventually waits until the condition holds.
func eventually(what string, holds func() bool) error {
	for end := time.Now().Add(90 * time.Second); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		if holds() {
			return nil
		}
	}
	return fmt.Errorf("not within 90 s: %s", what)
}
