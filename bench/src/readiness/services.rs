//! The services of the benchmark: a static server, Django and Tomcat of Debian's packages.

use std::{fmt, str::FromStr};

use fixtures::image::Entry;
use serde_json::{Value as Json, json};

/// A service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Service {
    /// A static server.
    Static,
    /// Python with Django.
    Django,
    /// A service of the JVM.
    Jvm,
}

const NGINX: &str = "\
daemon off;
user www-data;
worker_processes 1;
pid /tmp/nginx.pid;
error_log stderr;
events {}
http {
    access_log off;
    server {
        listen 127.0.0.1:PORT;
        root /srv/www;
    }
}
";

const DJANGO: &str = r#"
from django.conf import settings
from django.core.management import execute_from_command_line
from django.http import HttpResponse
from django.urls import path

settings.configure(
    ALLOWED_HOSTS=["*"],
    DEFAULT_AUTO_FIELD="django.db.models.AutoField",
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "django.contrib.sessions"],
    MIDDLEWARE=[
        "django.middleware.security.SecurityMiddleware",
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.middleware.common.CommonMiddleware",
        "django.middleware.csrf.CsrfViewMiddleware",
    ],
    ROOT_URLCONF=__name__,
    SECRET_KEY="bench",
)
urlpatterns = [path("", lambda request: HttpResponse("ANSWER"))]
execute_from_command_line(["app", "runserver", "--noreload", "127.0.0.1:PORT"])
"#;

const TOMCAT: &str = r#"<?xml version="1.0"?>
<Server port="-1">
  <Service name="Catalina">
    <Connector address="127.0.0.1" port="PORT" />
    <Engine name="Catalina" defaultHost="localhost">
      <Host name="localhost" appBase="webapps" autoDeploy="false" />
    </Engine>
  </Service>
</Server>
"#;

const TOMCAT_WEB: &str = r#"<?xml version="1.0"?>
<web-app xmlns="https://jakarta.ee/xml/ns/jakartaee" version="5.0">
  <servlet>
    <servlet-name>default</servlet-name>
    <servlet-class>org.apache.catalina.servlets.DefaultServlet</servlet-class>
    <load-on-startup>1</load-on-startup>
  </servlet>
  <servlet-mapping>
    <servlet-name>default</servlet-name>
    <url-pattern>/</url-pattern>
  </servlet-mapping>
  <welcome-file-list>
    <welcome-file>index.html</welcome-file>
  </welcome-file-list>
</web-app>
"#;

impl Service {
    /// All services.
    pub const ALL: [Self; 3] = [Self::Static, Self::Django, Self::Jvm];

    /// Its name on the command line and in references.
    pub fn name(self) -> &'static str {
        match self {
            Self::Static => "static",
            Self::Django => "django",
            Self::Jvm => "jvm",
        }
    }

    /// The packages of its image, in addition to the smallest Debian.
    pub fn packages(self) -> &'static [&'static str] {
        match self {
            Self::Static => &["nginx-light"],
            Self::Django => &["python3-django"],
            Self::Jvm => &["default-jre-headless", "tomcat10-common"],
        }
    }

    /// Its configuration and content. It listens on this port of loopback and answers with this text.
    pub fn files(self, port: u16, answer: &str) -> Vec<Entry> {
        let fill = |text: &str| text.replace("PORT", &port.to_string()).replace("ANSWER", answer);
        let mut entries = vec![Entry::dir("srv")];
        match self {
            Self::Static => entries.extend([
                Entry::file("srv/nginx.conf", fill(NGINX)),
                Entry::dir("srv/www"),
                Entry::file("srv/www/index.html", answer),
            ]),
            Self::Django => entries.push(Entry::file("srv/app.py", fill(DJANGO))),
            Self::Jvm => {
                let directories = ["conf", "logs", "temp", "work", "webapps", "webapps/ROOT"];
                entries.push(Entry::dir("srv/tomcat"));
                entries.extend(directories.map(|name| Entry::dir(format!("srv/tomcat/{name}"))));
                entries.extend([
                    Entry::file("srv/tomcat/conf/server.xml", fill(TOMCAT)),
                    Entry::file("srv/tomcat/conf/web.xml", TOMCAT_WEB),
                    Entry::file("srv/tomcat/webapps/ROOT/index.html", answer),
                ]);
            }
        }
        entries
    }

    /// The `config` object of its image.
    pub fn run(self) -> Json {
        let (command, env) = match self {
            Self::Static => (json!(["nginx", "-c", "/srv/nginx.conf"]), vec![]),
            Self::Django => (json!(["python3", "/srv/app.py"]), vec!["PYTHONUNBUFFERED=1"]),
            Self::Jvm => (
                json!(["/usr/share/tomcat10/bin/catalina.sh", "run"]),
                vec![
                    "CATALINA_HOME=/usr/share/tomcat10",
                    "CATALINA_BASE=/srv/tomcat",
                    "JRE_HOME=/usr/lib/jvm/default-java",
                ],
            ),
        };
        let path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
        let env: Vec<&str> = env.into_iter().chain([path]).collect();
        json!({"Cmd": command, "Env": env, "WorkingDir": "/srv"})
    }
}

impl FromStr for Service {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|service| service.name() == text).ok_or(())
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Static => "nginx",
            Self::Django => "Django",
            Self::Jvm => "Tomcat",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed() {
        for service in Service::ALL {
            assert_eq!(service.name().parse(), Ok(service));
        }
        assert_eq!("php".parse::<Service>(), Err(()));
    }

    #[test]
    fn the_port_and_the_answer_are_filled_in() {
        for service in Service::ALL {
            let text =
                String::from_utf8_lossy(&fixtures::image::archive(service.files(18_080, "it works"))).into_owned();
            assert!(text.contains("127.0.0.1:18080") || text.contains("port=\"18080\""), "{text}");
            assert!(text.contains("it works") && !text.contains("PORT") && !text.contains("ANSWER"), "{text}");
        }
    }
}
