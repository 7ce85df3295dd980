"""librdkafka: the properties its clients get from us, and what they tell of failures."""
