// The published reference consumer (assembly and ordering, in memory, nothing stored) over a file of messages:
// how many it takes in a CPU-second. Usage: reference MESSAGES.jsonl NUMBER HASH WEIGHT
package main

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log"
	"math/big"
	"os"
	"regexp"
	"strconv"
	"syscall"
	"time"

	"github.com/inconshreveable/log15"
	"github.com/openrelayxyz/cardinal-streams/delivery"
	"github.com/openrelayxyz/cardinal-types"
)

type message struct {
	key, value []byte
	source     string
	offset     int64
}

func (m message) Key() []byte     { return m.key }
func (m message) Value() []byte   { return m.value }
func (m message) Source() string  { return m.source }
func (m message) Offset() int64   { return m.offset }
func (m message) Time() time.Time { return time.Time{} }

func read(path string) []message {
	file, err := os.Open(path)
	if err != nil {
		log.Fatal(err)
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(make([]byte, 1<<20), 64<<20)
	var all []message
	for lines.Scan() {
		var line struct {
			Topic     string `json:"topic"`
			Partition int    `json:"partition"`
			Offset    int64  `json:"offset"`
			Key       string `json:"key_b64"`
			Value     string `json:"value_b64"`
		}
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			log.Fatal(err)
		}
		key, _ := base64.StdEncoding.DecodeString(line.Key)
		value, _ := base64.StdEncoding.DecodeString(line.Value)
		if len(key) == 0 || key[0] == 0xff {
			continue
		}
		all = append(all, message{key, value, line.Topic + ":" + strconv.Itoa(line.Partition), line.Offset})
	}
	return all
}

func cpu() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		log.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func main() {
	log15.Root().SetHandler(log15.DiscardHandler())
	messages := read(os.Args[1])
	number, _ := strconv.ParseInt(os.Args[2], 10, 64)
	weight, _ := new(big.Int).SetString(os.Args[4], 10)
	all := []*regexp.Regexp{regexp.MustCompile(".*")}
	consumer, err := delivery.NewOrderedMessageProcessor(number, types.HexToHash(os.Args[3]), weight, 128, all, nil)
	if err != nil {
		log.Fatal(err)
	}
	updates := make(chan *delivery.ChainUpdate, 1000)
	consumer.Subscribe(updates)
	added := 0
	go func() {
		for update := range updates {
			added += len(update.Added())
			update.Done()
		}
	}()
	begun, spent := time.Now(), cpu()
	for _, m := range messages {
		if err := consumer.ProcessMessage(m); err != nil {
			log.Fatal(err)
		}
	}
	time.Sleep(10 * time.Millisecond)
	used := (cpu() - spent).Seconds()
	fmt.Printf("{\"messages\": %d, \"added\": %d, \"seconds\": %.3f, \"messages_per_cpu_second\": %.0f}\n",
		len(messages), added, time.Since(begun).Seconds(), float64(len(messages))/used)
}
