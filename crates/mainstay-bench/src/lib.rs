//! The benchmark bodies of the `mainstay bench` commands.
