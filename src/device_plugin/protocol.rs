//! (pure) The kubelet's device plugin API, version v1beta1, as `k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1/api.proto` defines it.
//!
//! Messages have only the fields that are used here. A reader of protocol buffers skips unknown fields.

/// Version of the API.
pub const VERSION: &str = "v1beta1";
/// File name of the socket on which the kubelet listens, in its directory for device plugins.
pub const KUBELET_SOCKET: &str = "kubelet.sock";

/// The kubelet's only method.
pub const REGISTER: &str = "/v1beta1.Registration/Register";

/// Method of a plugin: the optional methods that the kubelet shall call.
pub const OPTIONS: &str = "/v1beta1.DevicePlugin/GetDevicePluginOptions";
/// Method of a plugin: the stream of its devices.
pub const LIST_AND_WATCH: &str = "/v1beta1.DevicePlugin/ListAndWatch";
/// Method of a plugin: the device nodes of new containers.
pub const ALLOCATE: &str = "/v1beta1.DevicePlugin/Allocate";
/// [`Device::health`] of a device that containers can get.
pub const HEALTHY: &str = "Healthy";
/// [`Device::health`] of any other device.
pub const UNHEALTHY: &str = "Unhealthy";

/// A message without fields.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Empty {}

/// The optional methods that the kubelet shall call. Default: none, and this plugin has none.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Options {
    /// `PreStartContainer`.
    #[prost(bool, tag = "1")]
    pub pre_start_required: bool,
    /// `GetPreferredAllocation`.
    #[prost(bool, tag = "2")]
    pub get_preferred_allocation_available: bool,
}

/// The registration of a resource.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RegisterRequest {
    /// [`VERSION`].
    #[prost(string, tag = "1")]
    pub version: String,
    /// File name of the plugin's socket in the kubelet's directory.
    #[prost(string, tag = "2")]
    pub endpoint: String,
    /// The extended resource that pods request.
    #[prost(string, tag = "3")]
    pub resource_name: String,
    /// The same as the answer to [`OPTIONS`].
    #[prost(message, optional, tag = "4")]
    pub options: Option<Options>,
}

/// All devices. It is sent again after each change.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ListAndWatchResponse {
    /// In any order.
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<Device>,
}

/// A device that one container at a time can get.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Device {
    /// At most 63 characters.
    #[prost(string, tag = "1")]
    pub id: String,
    /// [`HEALTHY`] or [`UNHEALTHY`].
    #[prost(string, tag = "2")]
    pub health: String,
}

/// A request for devices of new containers.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AllocateRequest {
    /// One for each container.
    #[prost(message, repeated, tag = "1")]
    pub container_requests: Vec<ContainerAllocateRequest>,
}

/// The devices of a new container.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ContainerAllocateRequest {
    /// [`Device::id`] of each device.
    #[prost(string, repeated, tag = "1")]
    pub devices_ids: Vec<String>,
}

/// The answer to [`AllocateRequest`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct AllocateResponse {
    /// One for each container, in the order of the request.
    #[prost(message, repeated, tag = "1")]
    pub container_responses: Vec<ContainerAllocateResponse>,
}

/// The device nodes of a new container.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ContainerAllocateResponse {
    /// Can be empty.
    #[prost(message, repeated, tag = "3")]
    pub devices: Vec<DeviceSpec>,
}

/// A device node.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DeviceSpec {
    /// In the container.
    #[prost(string, tag = "1")]
    pub container_path: String,
    /// On the node.
    #[prost(string, tag = "2")]
    pub host_path: String,
    /// Letters: `r` to read, `w` to write, `m` to create device nodes.
    #[prost(string, tag = "3")]
    pub permissions: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;

    /// The kubelet identifies fields by their numbers, which no compiler compares.
    #[test]
    fn the_messages_have_the_bytes_that_the_kubelet_writes_and_reads() {
        let request = RegisterRequest {
            version: "v1".to_owned(),
            endpoint: "s".to_owned(),
            resource_name: "a/b".to_owned(),
            options: Some(Options {
                pre_start_required: false,
                get_preferred_allocation_available: true,
            }),
        };
        assert_eq!(
            request.encode_to_vec(),
            b"\x0a\x02v1\x12\x01s\x1a\x03a/b\x22\x02\x10\x01"
        );

        let devices = vec![Device {
            id: "tun-0".to_owned(),
            health: HEALTHY.to_owned(),
        }];
        assert_eq!(
            ListAndWatchResponse { devices }.encode_to_vec(),
            b"\x0a\x10\x0a\x05tun-0\x12\x07Healthy"
        );

        let asked = AllocateRequest::decode(b"\x0a\x07\x0a\x05tun-0".as_slice()).unwrap();
        assert_eq!(asked.container_requests[0].devices_ids, ["tun-0"]);

        let path = || "/d".to_owned();
        let device = DeviceSpec {
            container_path: path(),
            host_path: path(),
            permissions: "rw".to_owned(),
        };
        let container_responses = vec![ContainerAllocateResponse {
            devices: vec![device],
        }];
        let given = AllocateResponse {
            container_responses,
        }
        .encode_to_vec();
        assert_eq!(given, b"\x0a\x0e\x1a\x0c\x0a\x02/d\x12\x02/d\x1a\x02rw");
    }
}
