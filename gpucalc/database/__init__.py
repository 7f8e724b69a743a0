"""The reader of `hardware_db`: devices, nodes, links, software profiles, calibration tables, defaults."""
