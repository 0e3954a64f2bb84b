"""What ships for those who write a provider, a metadata store or a message store of their own."""
