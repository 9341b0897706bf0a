"""What Alembic runs: the steps, on the connection and inside the transaction that `migrate` hands over."""

from alembic import context

from forewarn.store.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
