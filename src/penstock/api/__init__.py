"""The operations of a broker, implemented once: clients call them in their own process or over the native port.

operations   what may be asked, with the question whether the caller may; `queues` are those of work queues
feed         deliveries as they become possible, for streams
frames       the same on the wire
"""
