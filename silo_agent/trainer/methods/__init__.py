"""The papers' methods, one object each behind the `Method` protocol, and the parts they share."""
