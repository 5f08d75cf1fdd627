"""What everything else in the chassis uses: settings, who asks, why a process cannot start."""
