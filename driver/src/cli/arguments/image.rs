//! The arguments of `oci-rs image`, and of docker's short forms of its commands.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::NodeArguments;

/// The options of `image ls`.
#[derive(Args)]
pub struct ListOptions {
    /// Print only the image ids
    #[arg(short, long)]
    pub quiet: bool,
}

/// The arguments of `images`.
#[derive(Args)]
pub struct ListArguments {
    /// The options.
    #[command(flatten)]
    pub options: ListOptions,
    /// The node.
    #[command(flatten)]
    pub node: NodeArguments,
}

/// The options of `image pull`.
#[derive(Args)]
pub struct PullOptions {
    /// As in a job's option `image`
    pub reference: String,
    /// Do not pin: the plugin's gc may remove the image, and a private image stays private
    #[arg(long)]
    pub unpinned: bool,
}

/// The arguments of `pull`.
#[derive(Args)]
pub struct PullArguments {
    /// The options.
    #[command(flatten)]
    pub options: PullOptions,
    /// The node.
    #[command(flatten)]
    pub node: NodeArguments,
}

/// The options of `image prefetch`.
#[derive(Args)]
pub struct PrefetchOptions {
    /// As in a job's option `image`
    #[arg(value_name = "IMAGE", required_unless_present = "file")]
    pub references: Vec<String>,
    /// Job files, whose tasks with this node's drivers name images: HCL, which needs an installed `nomad`, or JSON as
    /// `nomad job run -output` or the API writes it; `-` is standard input
    #[arg(short, long, value_name = "FILE", num_args = 1..)]
    pub file: Vec<PathBuf>,
    /// A variable of HCL files, as for `nomad job run`
    #[arg(long, value_name = "NAME=VALUE")]
    pub var: Vec<String>,
    /// A file with variables of HCL files, as for `nomad job run`
    #[arg(long, value_name = "FILE")]
    pub var_file: Vec<PathBuf>,
    /// Images that are pulled at the same time
    #[arg(long, value_name = "NUMBER", default_value_t = 3)]
    pub parallel: usize,
}

/// The options of `image rm`.
#[derive(Args)]
pub struct RemoveOptions {
    /// Names as in a job's option `image`, digests, image ids, or the first digits of them
    #[arg(required = true)]
    pub references: Vec<String>,
}

/// The arguments of `rmi`.
#[derive(Args)]
pub struct RemoveArguments {
    /// The options.
    #[command(flatten)]
    pub options: RemoveOptions,
    /// The node.
    #[command(flatten)]
    pub node: NodeArguments,
}

/// The arguments of `image history`.
#[derive(Args)]
pub struct HistoryArguments {
    /// A name as in a job's option `image`, a digest, an image id, or the first digits of one
    pub reference: String,
    /// Show whole commands
    #[arg(long)]
    pub no_trunc: bool,
}

/// The arguments of `oci-rs image`.
#[derive(Args)]
pub struct ImageArguments {
    /// The command.
    #[command(subcommand)]
    pub command: ImageCommand,
    /// The node.
    #[command(flatten)]
    pub node: NodeArguments,
}

/// The commands of `oci-rs image`.
#[derive(Subcommand)]
pub enum ImageCommand {
    /// List the images
    #[command(visible_alias = "list")]
    Ls(ListOptions),
    /// Show the details of an image
    Inspect {
        /// A name as in a job's option `image`, a digest, an image id, or the first digits of one
        reference: String,
    },
    /// Download an image and pin it: every job on this node can use it without its registry
    Pull(PullOptions),
    /// Download images that jobs will need, without pinning them
    Prefetch(PrefetchOptions),
    /// Show how an image was built, and the size of each step
    History(HistoryArguments),
    /// Show the layers of all images, and which images share them
    Tree,
    /// Show which parts of a native image its containers read first on this node
    Profile {
        /// A name as in a job's option `image`, a digest, an image id, or the first digits of one
        reference: String,
    },
    /// Unpack an image of an archive and pin it: every job on this node can use it without its registry
    Load {
        /// An archive of `docker save` or an OCI layout, compressed or not
        file: PathBuf,
        /// The image in the archive, and its name in a job's option `image`
        reference: String,
        /// Do not pin: only tasks that name the same archive with `load` find its layers
        #[arg(long)]
        unpinned: bool,
    },
    /// Add native images to an image: nodes copy their layers instead of unpacking them. Needs no node and no root
    Convert {
        /// An OCI layout (a directory, or an archive of one), or docker://NAME for an image of a registry
        source: String,
        /// The directory that becomes the new OCI layout, which must not exist, or docker://NAME to upload the result
        target: String,
        /// The image's name in the layout; needed if it has several images
        #[arg(long)]
        image: Option<String>,
        /// The output of `image profile --json`: nodes fetch first what containers read first
        #[arg(long)]
        profile: Option<PathBuf>,
        /// Place the data of the profile's files before the other data: fewer bytes come before a start. Images then
        /// share layers only with images of the same profile
        #[arg(long, requires = "profile")]
        reorder: bool,
        /// Do not compress: first reads are faster, downloads are larger. Also for kernels without zstd for EROFS
        #[arg(long)]
        uncompressed: bool,
    },
    /// Upload an image of an OCI layout, except for what the registry has. Needs no node and no root
    Push {
        /// An OCI layout: a directory, or an archive of one
        source: PathBuf,
        /// The image's name at the registry, as in a job's option `image`
        reference: String,
        /// The image's name in the layout; needed if it has several images
        #[arg(long)]
        image: Option<String>,
    },
    /// Remove images that no task uses
    #[command(visible_alias = "remove")]
    Rm(RemoveOptions),
    /// Remove all images that no task uses
    Prune {
        /// Only say what would be removed
        #[arg(long)]
        dry_run: bool,
    },
    /// Check the images on disk
    Fsck {
        /// Repair damage that can be repaired; images in use are never changed
        #[arg(long)]
        repair: bool,
    },
}
