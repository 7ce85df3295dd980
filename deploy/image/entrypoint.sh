#!/bin/bash
# What the image with Spark starts. Spark on Kubernetes starts its own pods with the first word `executor`, or `driver`
# where spark-submit or an operator has made the driver's pod, and tells the rest by the environment. Anything else is
# for kunicorn. Nothing stays in between: what is started is PID 1 and gets the signals.
set -eu
case "${1:-}" in
driver)
    shift
    exec spark-submit --conf "spark.driver.bindAddress=${SPARK_DRIVER_BIND_ADDRESS:?only Spark starts drivers}" \
        --deploy-mode client "$@"
    ;;
executor)
    options=()
    number=0
    while name=SPARK_JAVA_OPT_$number && [ -n "${!name+set}" ]; do
        options+=("${!name}")
        number=$((number + 1))
    done
    jars=$(echo /opt/kunicorn/lib/python3*/site-packages/pyspark/jars)
    exec java "${options[@]}" -Xms"${SPARK_EXECUTOR_MEMORY:?only Spark starts executors}" -Xmx"$SPARK_EXECUTOR_MEMORY" \
        -cp "${SPARK_CLASSPATH:+$SPARK_CLASSPATH:}$jars/*" \
        org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
        --driver-url "$SPARK_DRIVER_URL" \
        --executor-id "$SPARK_EXECUTOR_ID" \
        --cores "$SPARK_EXECUTOR_CORES" \
        --app-id "$SPARK_APPLICATION_ID" \
        --hostname "$SPARK_EXECUTOR_POD_IP" \
        --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
        --podName "$SPARK_EXECUTOR_POD_NAME"
    ;;
*)
    exec kunicorn "$@"
    ;;
esac
