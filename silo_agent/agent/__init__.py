"""The network side: it holds the certificate, carries ballots and consensuses, and sees no data."""
