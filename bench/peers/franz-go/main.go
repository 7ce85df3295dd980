// franz-go as its users write it: the client in a group, polled, every record counted into shared memory the way the
// Python programs do it (bench/peers/clients/tally.py).
package main

import (
	"context"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"github.com/twmb/franz-go/pkg/kgo"
)

const one = 1 << 42

func main() {
	partitions, _ := strconv.Atoi(os.Getenv("BENCH_PARTITIONS"))
	cells := open(os.Getenv("BENCH_TALLIES"), partitions)
	context, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	client, err := kgo.NewClient(
		kgo.SeedBrokers(os.Getenv("BENCH_BOOTSTRAP")),
		kgo.ConsumerGroup(os.Getenv("BENCH_GROUP")),
		kgo.ConsumeTopics(os.Getenv("BENCH_TOPIC")),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.HeartbeatInterval(time.Second),
		kgo.SessionTimeout(45*time.Second),
	)
	if err != nil {
		panic(err)
	}
	defer client.Close()
	delays := os.Getenv("BENCH_HANDLER") == "delay"
	touched := 0
	for context.Err() == nil {
		client.PollFetches(context).EachRecord(func(record *kgo.Record) {
			touched += len(record.Value)
			if delays {
				note(cells[partitions:], record.Value)
			}
			cells[record.Partition] += one + uint64(record.Offset)
		})
	}
}

// note a record's delay; its value is nanoseconds since the epoch.
func note(cells []uint64, value []byte) {
	sent, _ := strconv.ParseUint(strings.TrimSpace(string(value)), 10, 64)
	cells[1+2*cells[0]] = sent
	cells[2+2*cells[0]] = uint64(time.Now().UnixNano()) - sent
	cells[0]++
}

func open(directory string, partitions int) []uint64 {
	size := 8 * (partitions + 1 + 2*100_000)
	file, err := os.Create(directory + "/" + strconv.Itoa(os.Getpid()))
	if err == nil {
		err = file.Truncate(int64(size))
	}
	if err != nil {
		panic(err)
	}
	mapped, err := syscall.Mmap(int(file.Fd()), 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		panic(err)
	}
	return unsafe.Slice((*uint64)(unsafe.Pointer(&mapped[0])), size/8)
}
