"""Values that users pass in and get back: messages, options and policies, filters, names. No state and no I/O."""
