from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("tenants", "0023_content_log"),
    ]

    operations = [
        migrations.AddField(
            model_name="user",
            name="time_zone",
            field=models.CharField(blank=True, db_default="", default="", max_length=64),
        ),
    ]
