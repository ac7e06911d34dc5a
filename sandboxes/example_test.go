package sandboxes_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"sync"
	"time"

	"agentsh/sandboxes"
)

// A command in a new sandbox. The policy refuses what it does not allow, and the result says so.
func Example() {
	ctx := context.Background()
	client, err := sandboxes.Start(ctx, sandboxes.Options{Stderr: os.Stderr})
	if err != nil {
		log.Panic(err)
	}
	defer client.Close()
	box, err := client.Create(ctx, sandboxes.Spec{Policy: "policy.yaml"})
	if err != nil {
		log.Panic(err)
	}
	res, err := box.Run(ctx, sandboxes.Command{Script: "echo hello; kill 1", Timeout: time.Minute})
	if err != nil {
		log.Panic(err)
	}
	fmt.Printf("%s%d %s: %s\n", res.Stdout, res.ExitCode, res.Refusals[0].Rule, res.Refusals[0].Message)
	// Prints:
	// hello
	// 126 block-kill: processes are not signalled from here
}

// One setup for several tries: each starts from the snapshot.
func ExampleSandbox_Rollback() {
	ctx := context.Background()
	client, err := sandboxes.Start(ctx, sandboxes.Options{})
	if err != nil {
		log.Panic(err)
	}
	defer client.Close()
	box, err := client.Create(ctx, sandboxes.Spec{Policy: "policy.yaml"})
	if err != nil {
		log.Panic(err)
	}
	if err := box.WriteFile(ctx, "n", []byte("1\n"), 0o644); err != nil {
		log.Panic(err)
	}
	clean, err := box.Snapshot(ctx, "clean")
	if err != nil {
		log.Panic(err)
	}
	for range 2 {
		res, err := box.Run(ctx, sandboxes.Command{Script: "echo more >>n; wc -l <n"})
		if err != nil {
			log.Panic(err)
		}
		changed, err := box.Rollback(ctx, clean.ID)
		if err != nil {
			log.Panic(err)
		}
		fmt.Printf("%s%s %s\n", res.Stdout, changed[0].Kind, changed[0].Path)
	}
	// Prints:
	// 2
	// modified workspace/work/n
	// 2
	// modified workspace/work/n
}

// Sandboxes side by side, each from the files of the same saved one.
func ExampleSandbox_Save() {
	ctx := context.Background()
	client, err := sandboxes.Start(ctx, sandboxes.Options{})
	if err != nil {
		log.Panic(err)
	}
	defer client.Close()
	first, err := client.Create(ctx, sandboxes.Spec{Policy: "policy.yaml"})
	if err != nil {
		log.Panic(err)
	}
	if err := first.WriteFile(ctx, "double.sh", []byte("echo $(($1 + $1))\n"), 0o755); err != nil {
		log.Panic(err)
	}
	if err := first.Save(ctx, "ready.box"); err != nil {
		log.Panic(err)
	}
	answers := make([]string, 3)
	var wg sync.WaitGroup
	for i := range answers {
		wg.Go(func() {
			box, err := client.Create(ctx, sandboxes.Spec{Policy: "policy.yaml", From: "ready.box"})
			if err != nil {
				log.Print(err)
				return
			}
			res, err := box.Run(ctx, sandboxes.Command{Argv: []string{"sh", "double.sh", fmt.Sprint(i)}})
			if err != nil {
				log.Print(err)
			}
			answers[i] = string(res.Stdout)
		})
	}
	wg.Wait()
	fmt.Printf("%q\n", answers)
	// Prints:
	// ["0\n" "2\n" "4\n"]
}
