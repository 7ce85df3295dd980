"""The same handler on Spark, over ranges of offsets: see docs/pipeline.md.

`kunicorn.pipeline.source.KunicornDataSource` is the data source `kunicorn`; `kunicorn pipeline` runs the jobs.
"""
