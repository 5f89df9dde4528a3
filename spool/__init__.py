"""The durable queue: schema, migrations, store, job files and the state machine; imports nothing of ours."""
