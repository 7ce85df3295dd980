"""The chart and the image on a real Kubernetes cluster: `make test-kubernetes` and `make game-day`."""
