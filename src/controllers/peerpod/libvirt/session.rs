//! (client) The calls to a host about the domain and the volumes of an instance.

use crate::api::peerpod::{LibvirtUuid, PeerPodReason, is_instance_name};
use crate::controllers::peerpod::facts::{Owner, Seen};
use crate::controllers::peerpod::failure::Failure;
use crate::controllers::peerpod::gate::TokenBucket;
use crate::controllers::peerpod::libvirt::Stream;
use crate::controllers::peerpod::libvirt::config::URI;
use crate::controllers::peerpod::libvirt::errors::{code, failure, unreadable};
use crate::controllers::peerpod::libvirt::proof::{Found, OwnVolume, Uses, is_volume_name};
use crate::controllers::peerpod::libvirt::rpc::{Procedure, Rpc, RpcError};
use crate::controllers::peerpod::libvirt::xdr::{Counted, Domain, Pool, Value, Volume, Writer};
use crate::controllers::peerpod::libvirt::xml::{self, Unreadable};
use std::collections::BTreeSet;

/// The connection of libvirt on the host.
const NAME: &str = "qemu:///system";
/// Flag of descriptions: as the domain starts next time.
const INACTIVE: u32 = 2;
/// Flag of the list of pools: only active ones.
const ACTIVE: u32 = 2;
/// Flags of the removal of a definition: with saved memory (1), snapshots (2), firmware variables (4), checkpoints (16) and TPM (32). Older releases
/// know only the first three. Drivers without flags have another procedure.
const UNDEFINE_FLAGS: [u32; 2] = [1 + 2 + 4 + 16 + 32, 1 + 2 + 4];

/// A connection to a host.
pub struct Session<'a> {
    rpc: Rpc<Stream>,
    bucket: &'a mut TokenBucket,
    /// The storage pool of the adaptor.
    pool: &'a str,
    /// UUID of the host.
    place: String,
    /// The uses of volumes on the host, after the first call that has needed them.
    uses: Option<Uses>,
}

impl<'a> Session<'a> {
    /// Begins a session, and reads the UUID of the host.
    ///
    /// # Errors
    /// A call fails, or libvirt demands a login.
    pub async fn open(
        rpc: Rpc<Stream>,
        bucket: &'a mut TokenBucket,
        pool: &'a str,
    ) -> Result<Self, Failure> {
        let (place, uses) = (String::new(), None);
        let mut this = Self {
            rpc,
            bucket,
            pool,
            place,
            uses,
        };
        let logins: Vec<u32> = this.call(Procedure::AuthList, Writer::default()).await?;
        if logins != [0] {
            let message = format!(
                "libvirt demands a login, which this controller does not support; set auth_unix_rw to \"none\" in the configuration of libvirt on the \
                 host, or change {URI}"
            );
            return Err(Failure::new(PeerPodReason::CredentialsRejected, message));
        }
        let name = Writer::default().number(1).text(NAME).number(0);
        this.call::<()>(Procedure::ConnectOpen, name).await?;
        let none = Writer::default();
        let capabilities: String = this.call(Procedure::ConnectGetCapabilities, none).await?;
        this.place = xml::host_uuid(&capabilities).map_err(unreadable)?;
        Ok(this)
    }

    /// UUID of the host.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Describes the domain and its volumes.
    ///
    /// # Errors
    /// A call fails.
    pub async fn find(
        &mut self,
        id: LibvirtUuid,
        owner: &Owner,
        note: Option<&Seen>,
    ) -> Result<Found, Failure> {
        // A note can be forged. It counts only for names of this pod, and at this host.
        let is_valid =
            |it: &&Seen| it.place == self.place && is_instance_name(&it.name, &owner.name);
        let note = note.filter(is_valid);
        let domain = self.domain(id).await?;
        let (mut found, mut candidates) = (Found::default(), BTreeSet::new());
        // A volume of the note can be absent from the present description, for example after a snapshot.
        candidates.extend(note.into_iter().flat_map(|it| it.volumes.clone()));
        let name = match (&domain, note) {
            (Some(domain), _) => {
                candidates.extend(self.references(domain).await?);
                domain.name.clone()
            }
            (None, Some(note)) => note.name.clone(),
            (None, None) => return Ok(found),
        };
        for candidate in candidates {
            let file = candidate.rsplit('/').next().unwrap_or_default();
            if !is_volume_name(file, &name) {
                continue;
            }
            if let Some(volume) = self.volume(&candidate, &mut found.remains).await?
                && is_volume_name(&volume.volume.name, &name)
                && !found.volumes.contains(&volume)
            {
                found.volumes.push(volume);
            }
        }
        found.domain = domain;
        if found.domain.is_none() && !found.volumes.is_empty() {
            self.retain_unused(&mut found).await?;
        }
        Ok(found)
    }

    /// Deletes the domain and the volumes that [`Self::find`] has found. Returns volumes that remain, each with the reason.
    ///
    /// # Errors
    /// A call fails.
    pub async fn delete(&mut self, found: &Found) -> Result<Vec<String>, Failure> {
        if let Some(domain) = &found.domain {
            self.end(domain).await?;
        }
        let mut remains = found.remains.clone();
        let own = found.domain.as_ref().map(|it| it.uuid);
        // Read again, because the end of a domain takes seconds, and several domains end in one session.
        self.uses = None;
        let (unused, used) = match found.volumes.as_slice() {
            [] => (Vec::new(), Vec::new()),
            volumes => self.uses().await?.unused(volumes, own),
        };
        remains.extend(used);
        for volume in &unused {
            // The volume is read again, because another one can have its place.
            let again = self.volume(&volume.text(), &mut Vec::new()).await?;
            if again.as_ref().is_some_and(|again| again != volume) {
                remains.push(format!("volume {} is another one now", volume.text()));
            }
            if again.as_ref() == Some(volume) {
                let arguments = Writer::default().volume(&volume.volume).number(0);
                let is_gone = [code::NO_STORAGE_VOL];
                self.call_unless::<()>(&is_gone, Procedure::StorageVolDelete, arguments)
                    .await?;
            }
        }
        Ok(remains)
    }

    /// Stops the domain in whatever active state, and removes its definition.
    async fn end(&mut self, domain: &Domain) -> Result<(), Failure> {
        if domain.number >= 0 {
            let arguments = Writer::default().domain(domain).number(0);
            let is_stopped = [code::NO_DOMAIN, code::OPERATION_INVALID];
            self.call_unless::<()>(&is_stopped, Procedure::DomainDestroyFlags, arguments)
                .await?;
        }
        self.undefine(domain).await?;
        match self.domain(domain.uuid).await? {
            None => Ok(()),
            Some(_) => {
                let message = format!(
                    "libvirt still has domain {} after its deletion; the controller tries again",
                    domain.uuid
                );
                Err(Failure::new(PeerPodReason::DeletionFailed, message))
            }
        }
    }

    /// A domain without a definition no longer exists after its stop.
    async fn undefine(&mut self, domain: &Domain) -> Result<(), Failure> {
        let is_unsupported = [code::NO_SUPPORT, code::INVALID_ARG, code::NO_DOMAIN];
        for flags in UNDEFINE_FLAGS {
            let arguments = Writer::default().domain(domain).number(flags);
            let procedure = Procedure::DomainUndefineFlags;
            let removal = self.call_unless::<()>(&is_unsupported, procedure, arguments);
            if removal.await?.is_some() {
                return Ok(());
            }
        }
        let (arguments, is_gone) = (Writer::default().domain(domain), [code::NO_DOMAIN]);
        let removal = self.call_unless::<()>(&is_gone, Procedure::DomainUndefine, arguments);
        removal.await.map(drop)
    }

    async fn domain(&mut self, uuid: LibvirtUuid) -> Result<Option<Domain>, Failure> {
        let procedure = Procedure::DomainLookupByUuid;
        let arguments = Writer::default().uuid(uuid);
        match self.answer::<Domain>(procedure, arguments).await {
            // The answer must be about this domain.
            Err(RpcError::Answered { code, message })
                if code == code::NO_DOMAIN && message.contains(&uuid.to_string()) =>
            {
                Ok(None)
            }
            Ok(domain) if uuid != domain.uuid => Err(unreadable(Unreadable)),
            result => result.map(Some).map_err(|error| failure(procedure, error)),
        }
    }

    /// The volume at that path, or with that pool and name. One that does not exist is none.
    async fn volume(
        &mut self,
        place: &str,
        remains: &mut Vec<String>,
    ) -> Result<Option<OwnVolume>, Failure> {
        let name = place.rsplit('/').next().unwrap_or_default();
        let mut found = None;
        if place.starts_with('/') {
            let (arguments, is_gone) = (Writer::default().text(place), [code::NO_STORAGE_VOL]);
            let procedure = Procedure::StorageVolLookupByPath;
            let volume = self.call_unless::<Volume>(&is_gone, procedure, arguments);
            found = volume.await?;
        }
        let pool = match place.split_once('/') {
            Some((pool, _)) if !pool.is_empty() => pool.to_owned(),
            // A pool that is not active hides its volumes from a lookup by path.
            _ => self.pool.to_owned(),
        };
        if found.is_none() {
            found = self.volume_of(&pool, name, remains).await?;
        }
        let Some(volume) = found else {
            return Ok(None);
        };
        let arguments = Writer::default().volume(&volume).number(0);
        let description: String = self
            .call(Procedure::StorageVolGetXmlDesc, arguments)
            .await?;
        let path = xml::paths(&description).map_err(unreadable)?.path;
        let found = OwnVolume { volume, path };
        if place.starts_with('/') && !found.is(&place.to_owned()) {
            remains.push(format!("file {place} is in no active pool"));
            return Ok(None);
        }
        Ok(Some(found))
    }

    async fn volume_of(
        &mut self,
        pool: &str,
        name: &str,
        remains: &mut Vec<String>,
    ) -> Result<Option<Volume>, Failure> {
        let (arguments, is_gone) = (Writer::default().text(pool), [code::NO_STORAGE_POOL]);
        let procedure = Procedure::StoragePoolLookupByName;
        let found = self.call_unless::<Pool>(&is_gone, procedure, arguments);
        let found = found.await?;
        let Some(found) = found else {
            remains.push(format!(
                "volume {name} can be in pool {pool}, which libvirt does not have"
            ));
            return Ok(None);
        };
        let arguments = Writer::default().pool(&found).text(name);
        let (procedure, is_gone) = (Procedure::StorageVolLookupByName, [code::NO_STORAGE_VOL]);
        self.call_unless::<Volume>(&is_gone, procedure, arguments)
            .await
    }

    /// Retains the volumes of a domain that no longer exists which nothing else uses.
    async fn retain_unused(&mut self, found: &mut Found) -> Result<(), Failure> {
        let (unused, used) = self.uses().await?.unused(&found.volumes, None);
        found.volumes = unused;
        found.remains.extend(used);
        Ok(())
    }

    /// The uses of volumes by all domains, active or not, and by all volumes.
    async fn uses(&mut self) -> Result<&Uses, Failure> {
        let uses = match self.uses.take() {
            Some(uses) => uses,
            None => self.read_uses().await?,
        };
        Ok(self.uses.insert(uses))
    }

    async fn read_uses(&mut self) -> Result<Uses, Failure> {
        let mut uses = Uses::default();
        let all = |flags| Writer::default().number(1).number(flags);
        let domains = self.call(Procedure::ConnectListAllDomains, all(0)).await?;
        let Counted::<Domain>(domains) = domains;
        for domain in domains {
            let references = self.references(&domain).await?;
            uses.domains.push((domain, references));
        }
        let procedure = Procedure::ConnectListAllStoragePools;
        let Counted::<Pool>(pools) = self.call(procedure, all(ACTIVE)).await?;
        for pool in pools {
            let arguments = Writer::default().pool(&pool).number(1).number(0);
            let procedure = Procedure::StoragePoolListAllVolumes;
            let Counted::<Volume>(volumes) = self.call(procedure, arguments).await?;
            for volume in volumes {
                if let Some(backing) = self.backing(&volume).await? {
                    uses.backings
                        .push((format!("{}/{}", volume.pool, volume.name), backing));
                }
            }
        }
        Ok(uses)
    }

    /// All paths and volumes to which the domain refers, now and at its next start.
    async fn references(&mut self, domain: &Domain) -> Result<BTreeSet<String>, Failure> {
        let mut references = BTreeSet::new();
        for flags in [0, INACTIVE] {
            let arguments = Writer::default().domain(domain).number(flags);
            // It can have ended since it was looked up.
            let (procedure, is_gone) = (Procedure::DomainGetXmlDesc, [code::NO_DOMAIN]);
            let description = self.call_unless::<String>(&is_gone, procedure, arguments);
            if let Some(description) = description.await? {
                references.extend(xml::references(&description).map_err(unreadable)?);
            }
        }
        Ok(references)
    }

    async fn backing(&mut self, volume: &Volume) -> Result<Option<String>, Failure> {
        let arguments = Writer::default().volume(volume).number(0);
        let (procedure, is_gone) = (Procedure::StorageVolGetXmlDesc, [code::NO_STORAGE_VOL]);
        let description = self.call_unless::<String>(&is_gone, procedure, arguments);
        match description.await? {
            Some(description) => Ok(xml::paths(&description).map_err(unreadable)?.backing),
            None => Ok(None),
        }
    }

    async fn call<T: Value>(
        &mut self,
        procedure: Procedure,
        arguments: Writer,
    ) -> Result<T, Failure> {
        let answer = self.answer(procedure, arguments).await;
        answer.map_err(|error| failure(procedure, error))
    }

    /// Calls a procedure. The result is none if libvirt answers with one of these errors.
    async fn call_unless<T: Value>(
        &mut self,
        codes: &[i32],
        procedure: Procedure,
        arguments: Writer,
    ) -> Result<Option<T>, Failure> {
        match self.answer(procedure, arguments).await {
            Err(RpcError::Answered { code, .. }) if codes.contains(&code) => Ok(None),
            answer => answer.map(Some).map_err(|error| failure(procedure, error)),
        }
    }

    async fn answer<T: Value>(
        &mut self,
        procedure: Procedure,
        arguments: Writer,
    ) -> Result<T, RpcError> {
        self.bucket.take().await;
        self.rpc.call(procedure, arguments).await
    }
}
