"""What is measured: names, help texts and buckets of all Prometheus metrics."""
