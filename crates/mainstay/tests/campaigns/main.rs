//! What campaigns find in handlers of users.

mod found;
mod instances;
mod services;
