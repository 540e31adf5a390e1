module wirehouse/bench/reference

go 1.21

require (
	github.com/inconshreveable/log15 v0.0.0-20201112154412-8562bdadbbac
	github.com/openrelayxyz/cardinal-streams v1.5.1
	github.com/openrelayxyz/cardinal-types v1.0.0
)

require (
	github.com/go-stack/stack v1.8.1 // indirect
	github.com/hamba/avro v1.6.6 // indirect
	github.com/hashicorp/golang-lru v0.5.5-0.20210104140557-80c98217689d // indirect
	github.com/json-iterator/go v1.1.12 // indirect
	github.com/mattn/go-colorable v0.1.13 // indirect
	github.com/mattn/go-isatty v0.0.16 // indirect
	github.com/modern-go/concurrent v0.0.0-20180306012644-bacd9c7ef1dd // indirect
	github.com/modern-go/reflect2 v1.0.2 // indirect
	github.com/rcrowley/go-metrics v0.0.0-20201227073835-cf1acfcdf475 // indirect
	golang.org/x/sys v0.5.0 // indirect
)
