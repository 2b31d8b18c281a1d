"""What a tracker makes of markers, without servers: time, messages in progress, decisions and transactions."""
