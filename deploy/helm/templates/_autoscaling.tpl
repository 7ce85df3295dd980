{{/* Up quickly, down one pod at a time, with room for a drain and its rebalance in between. */}}
{{- define "kunicorn.scalingBehavior" -}}
scaleUp:
  stabilizationWindowSeconds: 0
  policies:
    - {type: Pods, value: {{ .Values.autoscaling.scaleUpPods }}, periodSeconds: 60}
scaleDown:
  stabilizationWindowSeconds: {{ .Values.autoscaling.scaleDownStabilizationSeconds }}
  policies:
    - {type: Pods, value: 1, periodSeconds: {{ max 60 (add .Values.terminationGracePeriodSeconds 15) }}}
{{- end -}}
