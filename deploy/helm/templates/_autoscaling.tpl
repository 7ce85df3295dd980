{{/* Up quickly, down one pod at a time, with room for a drain and its rebalance in between. Kubernetes refuses a period of
more than half an hour; behind a longer drain the next pod goes by the stabilization window. */}}
{{- define "kunicorn.scalingBehavior" -}}
scaleUp:
  stabilizationWindowSeconds: 0
  policies:
    - {type: Pods, value: {{ .Values.autoscaling.scaleUpPods }}, periodSeconds: 60}
scaleDown:
  stabilizationWindowSeconds: {{ .Values.autoscaling.scaleDownStabilizationSeconds }}
  policies:
    - {type: Pods, value: 1, periodSeconds: {{ add .Values.terminationGracePeriodSeconds 15 | max 60 | min 1800 }}}
{{- end -}}

{{/* Names of the retry topics of all handlers, as the service makes them (`retry_topics_of`). As a JSON array. */}}
{{- define "kunicorn.retryTopics" -}}
{{- $settings := include "kunicorn.effective" . | fromJson -}}
{{- $topics := list -}}
{{- range $settings.handlers | default (list (default dict $settings.handler)) -}}
{{- $name := .retry_topic | default "{group}.retry.{delay}" -}}
{{- range .retry_topic_delays_ms -}}
{{- $delay := include "kunicorn.delayInWords" (int64 .) -}}
{{- $topics = append $topics ($name | replace "{group}" $settings.group.id | replace "{delay}" $delay) -}}
{{- end -}}
{{- end -}}
{{- $topics | toJson -}}
{{- end -}}

{{/* Milliseconds as they stand in a retry topic's name: 5s, 90s, 10m, 2h, 1500ms. */}}
{{- define "kunicorn.delayInWords" -}}
{{- if eq (mod . 3600000) 0 -}}{{ div . 3600000 }}h
{{- else if eq (mod . 60000) 0 -}}{{ div . 60000 }}m
{{- else if eq (mod . 1000) 0 -}}{{ div . 1000 }}s
{{- else -}}{{ . }}ms
{{- end -}}
{{- end -}}

{{/* What KEDA asks the brokers for, a trigger each: topic (empty: all that the group has committed on), lagThreshold,
activationLagThreshold, offsetResetPolicy. As a JSON array. */}}
{{- define "kunicorn.lagTriggers" -}}
{{- $settings := include "kunicorn.effective" . | fromJson -}}
{{- $scaling := .Values.autoscaling -}}
{{- $topics := $settings.group.topics -}}
{{- range $topics -}}
{{- /* KEDA knows no patterns: with one, a single trigger without a topic, as that counts the others, too. */ -}}
{{- if hasPrefix "^" . -}}{{- $topics = list "" -}}{{- end -}}
{{- end -}}
{{- $triggers := list -}}
{{- range $topics -}}
{{- $triggers = append $triggers (dict
      "topic" .
      "lagThreshold" (int64 $scaling.lagThreshold)
      "activationLagThreshold" (int64 $scaling.keda.activationLagThreshold)
      "offsetResetPolicy" (ternary "latest" "earliest" (eq (dig "auto_offset_reset" "earliest" $settings.group) "latest"))) -}}
{{- end -}}
{{- if eq (int $scaling.minReplicas) 0 -}}
{{- range include "kunicorn.retryTopics" . | fromJsonArray -}}
{{- /* Without a pod nobody handles what waits there when its time comes. Waiting takes one pod and no more; each record
counts, and the service reads a retry topic from its beginning. */ -}}
{{- $triggers = append $triggers (dict "topic" . "lagThreshold" 1000000000 "activationLagThreshold" 0 "offsetResetPolicy" "earliest") -}}
{{- end -}}
{{- end -}}
{{- $triggers | toJson -}}
{{- end -}}

{{/* How KEDA logs in, as the service does: a mechanism of SASL, or nothing. */}}
{{- define "kunicorn.kedaLogin" -}}
{{- $kafka := (include "kunicorn.effective" . | fromJson).kafka -}}
{{- if hasPrefix "SASL_" (dig "security_protocol" "PLAINTEXT" $kafka) -}}{{ dig "sasl_mechanism" "PLAIN" $kafka }}{{- end -}}
{{- end -}}
