"""What a service tells its event handlers: the events, their announcer, and the meter."""
