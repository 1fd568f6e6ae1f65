// A client of etcd, as a process. Arguments: endpoints. A line "WINDOW BYTES MILLISECONDS" on standard input makes it put for so long with so
// many puts outstanding, each by a goroutine of its own over one connection; the answer is "OPERATIONS SECONDS". It ends with its standard input.
package main

import (
	"bufio"
	"context"
	"fmt"
	"log"
	"os"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Keys that are written: as many as the other clients write.
const keys = 1000

func main() {
	client, err := clientv3.New(clientv3.Config{Endpoints: os.Args[1:], DialTimeout: 20 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	if err := untilServed(client); err != nil {
		log.Fatal(err)
	}
	fmt.Println("ready")
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var window, bytes int
		var milliseconds int64
		if _, err := fmt.Sscan(lines.Text(), &window, &bytes, &milliseconds); err != nil {
			log.Fatal(err)
		}
		operations, took := put(client, window, bytes, time.Duration(milliseconds)*time.Millisecond)
		fmt.Printf("%d %f\n", operations, took.Seconds())
	}
}

func untilServed(client *clientv3.Client) error {
	began := time.Now()
	for {
		once, cancel := context.WithTimeout(context.Background(), time.Second)
		_, err := client.Put(once, "warm", "up")
		cancel()
		if err == nil || time.Since(began) > 30*time.Second {
			return err
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func put(client *clientv3.Client, window, bytes int, during time.Duration) (uint64, time.Duration) {
	value := string(make([]byte, bytes))
	var next, done atomic.Uint64
	var writers sync.WaitGroup
	began := time.Now()
	for range window {
		writers.Add(1)
		go func() {
			defer writers.Done()
			for time.Since(began) < during {
				key := fmt.Sprintf("k%04d", next.Add(1)%keys)
				if _, err := client.Put(context.Background(), key, value); err != nil {
					log.Fatal(err)
				}
				done.Add(1)
			}
		}()
	}
	writers.Wait()
	return done.Load(), time.Since(began)
}
