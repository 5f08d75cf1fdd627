"""What every room of the manifest service uses: its context, time, leases of tasks, paging."""
