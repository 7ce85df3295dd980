"""librdkafka, the workers' Kafka client: the properties it is made with, and the meaning of its errors."""
