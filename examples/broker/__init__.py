"""A broker that RocketMQ's clients speak to, over a store of tieredstore: `python -m`
`examples.broker`."""
