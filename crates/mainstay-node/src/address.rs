//! Addresses as the group has them and as sockets want them.

use mainstay_types::view::Address;
use std::net::{IpAddr, SocketAddr};

/// For the group: IPv4 in its IPv6 form.
#[must_use]
pub fn of_group(address: SocketAddr) -> Address {
    let ip = match address.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    Address { ip: ip.octets(), port: address.port() }
}

/// For a socket.
#[must_use]
pub fn of_socket(address: Address) -> SocketAddr {
    SocketAddr::new(IpAddr::from(address.ip).to_canonical(), address.port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_are_the_same_address() {
        for text in ["127.0.0.1:7171", "[::1]:80"] {
            let address: SocketAddr = text.parse().expect("it is an address");
            assert_eq!(of_socket(of_group(address)), address);
        }
    }
}
