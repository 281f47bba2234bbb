"""Measurements that anybody can repeat: `rltrain bench` and `rltrain profile`. Outputs are checked before anything is timed."""
