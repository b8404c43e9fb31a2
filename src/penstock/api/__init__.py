"""Everything that can be asked of a broker, once: a client calls it in its own process or over the native port.

operations   what may be asked, with the question whether the caller may; `queues` are those of work queues
feed         deliveries as they become possible, for streams
frames       the same on the wire
"""
